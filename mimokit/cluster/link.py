"""Speak to engines through ipyparallel's client; everything else in this room speaks through this.

The client's own thread calls the callbacks given here: they must return at once.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import ipyparallel

from mimokit.cluster.errors import ClusterError
from mimokit.cluster.worker.sender import DATA_KEY


class TaskEvents(Protocol):
    """Who hears of one task on one engine."""

    def samples(self, batch: list[bytes]) -> None:
        """Pickled samples have come."""

    def output(self, text: str) -> None:
        """The function has printed."""

    def finished(self, result: Any) -> None:
        """The task has returned: its result, or ipyparallel's error object."""


class EngineLink:
    """A connection to the controller and, through it, to the engines."""

    def __init__(self, client: Any) -> None:
        self.client = client

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

    def call(self, engine_ids: Sequence[int], task: Callable[[], Any], timeout: float) -> list[Any]:
        """Run a short task on engines and return its results, in the order of `engine_ids`.

        Raises:
            ClusterError: if an engine raises, dies, or has not answered after `timeout` seconds.
        """
        replies = [_Reply() for _ in engine_ids]
        for engine_id, reply in zip(engine_ids, replies, strict=True):
            self.start(engine_id, task, reply)
        deadline = time.monotonic() + timeout
        return [
            reply.get(engine_id, deadline)
            for engine_id, reply in zip(engine_ids, replies, strict=True)
        ]

    def control(self, engine_id: int, message: str, content: dict[str, Any]) -> None:
        """Send a message that the engine hears also while it runs a task."""
        identity = self._identity(engine_id)
        if identity is not None:
            self.client._send(self.client._control_stream, message, content=content, ident=identity)

    def forget(self, engine_id: int) -> None:
        """Tell the controller that an engine is dead, rather than wait for its heartbeat."""
        with contextlib.suppress(OSError):
            self.client._send(
                self.client._query_stream, "unregistration_request", content={"id": engine_id}
            )

    def signal(self, engine_id: int, number: int) -> None:
        """Have the engine's nanny signal it (engines that others have started)."""
        with contextlib.suppress(Exception):
            self.client.send_signal(number, targets=[engine_id], block=False)

    def close(self) -> None:
        """Close the connection; the engines go on."""
        self.client.close(linger=0)

    def _identity(self, engine_id: int) -> bytes | None:
        identity = self.client._engines.get(engine_id)
        return identity.encode() if identity is not None else None


class _Reply:
    """The reply to a short task."""

    def __init__(self) -> None:
        self._arrived = threading.Event()
        self._result: Any = None

    def samples(self, batch: list[bytes]) -> None:
        """Short tasks send none."""

    def output(self, text: str) -> None:
        """Short tasks print nothing."""

    def finished(self, result: Any) -> None:
        self._result = result
        self._arrived.set()

    def get(self, engine_id: int, deadline: float) -> Any:
        if not self._arrived.wait(max(0.0, deadline - time.monotonic())):
            raise ClusterError(f"engine {engine_id} does not answer")
        if isinstance(self._result, ipyparallel.RemoteError):
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
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        check()
        try:
            information = json.loads(connection_file.read_text())
        except (OSError, ValueError):
            time.sleep(0.02)
            continue
        try:
            return EngineLink(ipyparallel.Client(information, timeout=timeout))
        except (OSError, TimeoutError) as error:
            raise ClusterError(f"the controller of {connection_file} does not answer") from error
    raise ClusterError(f"no controller has written {connection_file} within {timeout:.0f} s")
