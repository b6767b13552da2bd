"""Speak to engines through ipyparallel's client; everything else in this room speaks through this.

The client's own thread calls the callbacks given here: they must return at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mimokit.cluster.errors import ClusterError, EngineInUse, EnginesMissing
from mimokit.cluster.patience import slowdown
from mimokit.cluster.sockets import name_sockets
from mimokit.cluster.worker.sender import DATA_KEY
from mimokit.cluster.worker.session import STACK_MESSAGE
from mimokit.cluster.worker.stack import Place

if find_spec("ipyparallel") is None:  # imported later, while a local server begins
    raise ModuleNotFoundError(name="ipyparallel")

LOOK_SECONDS = 0.5
"""How often a call that waits looks whether waiting has become useless."""
BUSY_SECONDS = 5.0
"""How long a call waits for an engine that works for another client."""
ANSWER_SECONDS = 5.0
"""How long the controller may take to say what an engine has to do, an engine where it is, and its
nanny to answer."""
FIRST_ANSWER_SECONDS = 10.0
"""How long a new connection waits for the controller before it is tried again."""
PING_SECONDS = 2.0
"""How often the controller is asked for a sign of life during a run."""
SILENT_SECONDS = 7.5
"""How long the controller may take to give it: its silence is known within 10 s."""
REMEMBERED_MESSAGES = 4096
"""How many signatures of messages the client remembers, so that none is accepted twice.

By default it is 65,536, which grows for hundreds of runs.
"""


@dataclass(frozen=True)
class TaskEvents:
    """What is called, in the client's thread, as one task on one engine goes on."""

    finished: Callable[[Any], None]
    samples: Callable[[list[bytes]], None] = lambda batch: None
    output: Callable[[str], None] = lambda text: None


class EngineLink:
    """A connection to the controller and, through it, to the engines."""

    def __init__(self, client: Any) -> None:
        self.client = client
        client.session.digest_history_size = REMEMBERED_MESSAGES
        # It tells its log of a message with another key, and has none (ipyparallel 9.2).
        client.log = logging.getLogger(__name__)
        self._known: dict[int, bytes] = {}
        self._asking = threading.Lock()
        self._sign: Any = None
        self._asked = 0.0

    def live_ids(self) -> list[int]:
        """The ids of the engines that are registered now."""
        return list(self.client.ids)

    def start(self, engine_id: int, task: Callable[[], Any], events: TaskEvents) -> None:
        """Send a task to an engine's queue.

        Raises:
            ClusterError: if that engine is not registered.
        """
        identity = self._identity(engine_id)
        if identity is None:
            raise ClusterError(f"engine {engine_id} is not there any more")
        future = self.client.send_apply_request(
            self.client._mux_stream,
            task,
            ident=identity,
            message_future_hook=lambda future: _listen(future, events),
        )
        future.add_done_callback(lambda done: events.finished(done.result()))

    def call(
        self,
        engine_ids: Sequence[int],
        task: Callable[[], Any],
        timeout: float,
        watch: Callable[[int], None] = lambda engine_id: None,
    ) -> list[Any]:
        """Run a short task on engines and return its results, in the order of `engine_ids`.

        Args:
            timeout: seconds that an engine may take to answer when it has nothing else to do, on a
                machine that is not busy.
            watch: called with an engine that is waited for; raises if waiting has become useless.

        Raises:
            EngineInUse: if an engine works for another client.
            ClusterError: if an engine raises, dies, or has not answered after `timeout` seconds.
        """
        replies = [_Reply() for _ in engine_ids]
        for engine_id, reply in zip(engine_ids, replies, strict=True):
            self.start(engine_id, task, TaskEvents(reply.finish))
        deadline = time.monotonic() + timeout * slowdown()
        for engine_id, reply in zip(engine_ids, replies, strict=True):
            self._await(engine_id, reply, deadline, watch)
        return [
            reply.value(engine_id) for engine_id, reply in zip(engine_ids, replies, strict=True)
        ]

    def _await(
        self, engine_id: int, reply: _Reply, deadline: float, watch: Callable[[int], None]
    ) -> None:
        look = time.monotonic() + BUSY_SECONDS
        while not reply.arrived.wait(LOOK_SECONDS):
            watch(engine_id)
            now = time.monotonic()
            if now < min(look, deadline):
                continue
            look = now + BUSY_SECONDS
            if self._works_for_another(engine_id):
                raise EngineInUse(
                    f"another client uses engine {engine_id}: wait until its run has ended, or "
                    f"start another cluster"
                )
            if now >= deadline:
                raise EnginesMissing(f"engine {engine_id} does not answer")

    def _works_for_another(self, engine_id: int) -> bool:
        try:
            asked = self._ask({"targets": [engine_id], "verbose": True})
            reply = asked.result(ANSWER_SECONDS * slowdown())
            queue = reply["content"][str(engine_id)]["queue"]
        except (OSError, TimeoutError, LookupError):
            return False
        return any(not message.startswith(self.client.session.session) for message in queue)

    def has_sent_tasks(self, engine_ids: Sequence[int]) -> bool:
        """Whether engines have not yet answered all that this client has sent to them."""
        sent, names = self.client._outstanding_dict, self.client._engines
        return any(sent.get(names.get(engine_id)) for engine_id in engine_ids)

    def controller_is_silent(self) -> bool:
        """Whether the controller gives no sign of life; to be called again and again.

        Asks it at most every 2 s; it is silent if it has not answered after 7.5 s, and longer on a
        busy machine.
        """
        now = time.monotonic()
        with self._asking, contextlib.suppress(OSError):
            if self._sign is None or (self._sign.done() and now - self._asked >= PING_SECONDS):
                self._sign, self._asked = self._ask({"targets": None, "verbose": False}), now
            return not self._sign.done() and now - self._asked >= SILENT_SECONDS * slowdown()
        return False

    def _ask(self, content: dict[str, Any]) -> Any:
        return self.client._send(self.client._query_stream, "queue_request", content=content)

    def control(self, engine_id: int, message: str, content: dict[str, Any]) -> None:
        """Send a message that the engine hears also while it runs a task."""
        identity = self._identity(engine_id)
        if identity is not None:
            self.client._send(self.client._control_stream, message, content=content, ident=identity)

    def place(self, engine_id: int) -> Place | None:
        """Return where the main thread of an engine is, None if its process does not answer."""
        content = self._answer(engine_id, STACK_MESSAGE, {}, ANSWER_SECONDS)
        return (
            None if content is None or "place" not in content else Place.from_json(content["place"])
        )

    def has_nanny(self, engine_id: int) -> bool:
        """Whether the nanny of an engine answers: its host is there and can be reached."""
        return self._answer(engine_id, "signal_request", {"sig": 0}, ANSWER_SECONDS) is not None

    def _answer(
        self, engine_id: int, message: str, content: dict[str, Any], seconds: float
    ) -> dict[str, Any] | None:
        identity, stream = self._identity(engine_id), self.client._control_stream
        if identity is None:
            return None
        try:
            asked = self.client._send(stream, message, content=content, ident=identity)
            answer: dict[str, Any] = asked.result(seconds * slowdown())["content"]
        except (OSError, TimeoutError, LookupError):
            return None
        return answer

    def forget(self, engine_id: int) -> None:
        """Tell the controller that an engine is dead, rather than wait for its heartbeat."""
        with contextlib.suppress(OSError):
            self.client._send(
                self.client._query_stream, "unregistration_request", content={"id": engine_id}
            )

    def signal(self, engine_id: int, number: int) -> None:
        """Have the engine's nanny signal it (engines that others have started).

        The nanny hears it also when the controller has given the engine up.
        """
        identity = self._identity(engine_id) or self._known.get(engine_id)
        if identity is not None:
            stream, content = self.client._control_stream, {"sig": int(number)}
            with contextlib.suppress(OSError):
                self.client._send(stream, "signal_request", content=content, ident=identity)

    def close(self) -> None:
        """Close the connection; the engines go on."""
        self.client.close(linger=0)

    def _identity(self, engine_id: int) -> bytes | None:
        identity = self.client._engines.get(engine_id)
        if identity is None:
            return None
        self._known[engine_id] = identity.encode()
        return self._known[engine_id]


class _Reply:
    def __init__(self) -> None:
        self.arrived = threading.Event()
        self._result: Any = None

    def finish(self, result: Any) -> None:
        self._result = result
        self.arrived.set()

    def value(self, engine_id: int) -> Any:
        if hasattr(self._result, "ename"):  # ipyparallel's RemoteError
            raise ClusterError(describe_remote(engine_id, self._result))
        return self._result


def describe_remote(engine_id: int, error: Any) -> str:
    """One sentence on what ipyparallel reports of an engine."""
    if error.ename == "ModuleNotFoundError" and "mimokit" in str(error.evalue):
        return f"mimokit is not installed where engine {engine_id} runs"
    return f"engine {engine_id} failed with {error.ename}: {error.evalue}"


def _listen(future: Any, events: TaskEvents) -> None:
    # The output future carries the metadata that outlives the reply (client.py, "cleanup").
    metadata = future.output.metadata

    def on_message(message: dict[str, Any]) -> None:
        kind = message["header"]["msg_type"]
        if kind == "data_message":
            batch = metadata["data"].pop(DATA_KEY, None)
            if batch:
                events.samples(batch)
        elif kind == "stream":
            events.output(message["content"]["text"])

    future.iopub_callbacks.append(on_message)


def connect(connection_file: Path, timeout: float, check: Callable[[], None]) -> EngineLink:
    """Connect to the controller that writes `connection_file`, waiting for the file.

    `check` is called meanwhile, and raises if waiting has become useless.

    Raises:
        ClusterError: if there is no controller after `timeout` seconds.
    """
    import ipyparallel  # 0.2 s, in which a local server has begun to import

    deadline = time.monotonic() + timeout
    silent = False
    while time.monotonic() < deadline:
        check()
        try:
            information = json.loads(connection_file.read_text())
        except (OSError, ValueError):
            time.sleep(0.02)
            continue
        name_sockets(information)
        # It may end before it answers: `check` says why.
        with contextlib.suppress(OSError, TimeoutError):
            return EngineLink(ipyparallel.Client(information, timeout=FIRST_ANSWER_SECONDS))
        silent = True
    if silent:
        raise ClusterError(f"the controller of {connection_file} does not answer")
    raise ClusterError(f"no controller has written {connection_file} within {timeout:.0f} s")
