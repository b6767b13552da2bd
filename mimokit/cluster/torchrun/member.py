"""What every rank of a torchrun job does: wait for a task, work, report to rank 0."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Protocol

from mimokit.cluster import rank as rank_side
from mimokit.cluster.devices import choose_backend
from mimokit.cluster.errors import ClusterError
from mimokit.cluster.patience import slowdown
from mimokit.cluster.torchrun.messages import RankWork, Task, message_to_json, outcome_to_json
from mimokit.cluster.torchrun.store import AGENT_GONE, JobStore
from mimokit.cluster.worker.membership import Membership, describe
from mimokit.cluster.worker.session import INTERRUPT_SIGNAL, RankInterrupted
from mimokit.cluster.worker.stack import main_place
from mimokit.cluster.worker.task import Failure, RankOutcome, explain, release
from mimokit.cluster.world import EngineFacts, lay_out, places_on_hosts

COLLECTIVE_SECONDS = 300.0
"""How long a collective may wait for its peers; ranks that fail are noticed at once."""
BATCH_SECONDS = 0.1
"""How long a sample may wait for others before it is sent."""
LAST_SECONDS = 10.0
"""How long the work of a rank may take to end once the agent of the job is gone."""
EXIT_SECONDS = 60
"""How long its process may."""


class Sink(Protocol):
    """Takes what this rank sends."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Take a message of `samples.to_wire`."""

    def flush(self) -> None:
        """Send what waits."""

    def close(self) -> int:
        """Send the rest; return the number of messages."""


class StoreSink:
    """Leaves samples in the store, in batches."""

    def __init__(self, store: JobStore, number: int) -> None:
        self._store = store
        self._prefix = f"samples/{number}/{store.rank}"
        self._waiting: list[Any] = []
        self._batches = 0
        self._sent = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._tick, name="mimokit-sender", daemon=True).start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Take a message."""
        content = message_to_json(message)
        with self._lock:
            self._waiting.append(content)

    def close(self) -> int:
        """Send the rest; return the number of messages."""
        self._closed.set()
        self.flush()
        return self._sent

    def _tick(self) -> None:
        with contextlib.suppress(ClusterError):  # the rank hears of that elsewhere
            while not self._closed.wait(BATCH_SECONDS):
                self.flush()

    def flush(self) -> None:
        """Send what waits."""
        with self._lock:
            if self._waiting:
                self._store.put(f"{self._prefix}/{self._batches}", json.dumps(self._waiting))
                self._batches += 1
                self._sent += len(self._waiting)
                self._waiting = []


class _Side:
    """The rank's end of the run in progress, for `mimokit.cluster.emit` and `should_stop`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.stopping = False

    def emit(self, sample: Mapping[str, Any]) -> None:
        """Send one sample."""
        self._sink.send(sample)

    def flush(self) -> None:
        """Send the samples that wait."""
        self._sink.flush()


class Member:
    """One process of the job; its main thread calls `serve`.

    Args:
        make_sink: task number -> what takes this rank's samples.
    """

    def __init__(
        self, store: JobStore, work: RankWork, make_sink: Callable[[int], Sink] | None = None
    ) -> None:
        self._store = store
        self._work = work
        self._make_sink = make_sink or (lambda number: StoreSink(store, number))
        self._membership = Membership()
        self._side: _Side | None = None
        self._running: int | None = None
        self._interruptible = False
        self._aborted: set[int] = set()
        self._stopped: set[int] = set()
        self._agent = os.getppid()
        self._orphan = False
        self.facts: tuple[EngineFacts, ...] = store.exchange_facts(describe())
        signal.signal(INTERRUPT_SIGNAL, self._on_signal)

    def serve(self) -> None:
        """Do tasks until the last one; on the main thread.

        Raises:
            ClusterError: the agent of the job is gone.
        """
        number = 0
        while True:
            text = self._store.wait(f"task/{number}", self._agent_is_gone)
            if text is None:
                raise ClusterError(AGENT_GONE)
            task = Task.from_text(text)
            if task.last:
                self._membership.leave()
                return
            if self._store.rank < task.world_size:
                outcome = self._do(number, task)
                self._store.put(f"outcome/{number}/{self._store.rank}", outcome_to_json(outcome))
            number += 1

    def stop(self, number: int) -> None:
        """Ask a task to stop after its iteration, also before it begins; one rank is enough."""
        self._stopped.add(number)
        if self._side is not None and self._running == number:
            self._side.stopping = True

    def abort(self, number: int) -> None:
        """End a task at once; any thread may call it."""
        self._aborted.add(number)
        if self._running == number:
            self._membership.break_off()
            main = threading.main_thread().ident
            if main is not None:
                signal.pthread_kill(main, INTERRUPT_SIGNAL)

    def _do(self, number: int, task: Task) -> RankOutcome:
        sink = self._make_sink(number)
        self._side = _Side(sink)
        self._running = number
        self._side.stopping = number in self._stopped
        rank_side.set_current(self._side)
        ended = threading.Event()
        watch = threading.Thread(target=self._watch, args=(number, ended), daemon=True)
        watch.start()
        try:
            failure = self._attempt(number, task)
        finally:
            self._running = None
            rank_side.set_current(None)
            self._side = None
            ended.set()
        if failure is not None:
            self._membership.break_off()
            self._membership.leave()
        release()
        return RankOutcome(None, failure, sink.close(), failure is None)

    def _attempt(self, number: int, task: Task) -> Failure | None:
        # No name holds the exception when this returns: it keeps the model alive.
        try:
            try:
                self._interruptible = True
                self._raise_if_aborted()
                self._join(number, task.world_size)
                self._work.run(task.arguments, task.world_size)
            finally:
                self._interruptible = False
        except BaseException as error:
            if self._orphan:
                return explain(ClusterError(AGENT_GONE), aborted=False)
            return explain(error, number in self._aborted)
        return None

    def _join(self, number: int, size: int) -> None:
        """Join the world of a task; rank 0 hosts its store."""
        facts = self.facts[:size]
        places = places_on_hosts([fact.host for fact in facts])
        backend = choose_backend(facts, places)
        same_host = len({fact.host for fact in facts}) == 1
        if self._store.rank == 0:
            address = "127.0.0.1" if same_host else facts[0].address
            port = self._membership.open_store(address, COLLECTIVE_SECONDS)
            self._store.put(f"port/{number}", str(port))
        text = self._store.wait(f"port/{number}", lambda: number in self._aborted)
        if text is None:
            raise RankInterrupted
        key = self._store.key_of(f"world {number}")
        specs = lay_out(facts, places, int(text), COLLECTIVE_SECONDS, key, backend)
        self._membership.join(specs[self._store.rank])

    def _watch(self, number: int, ended: threading.Event) -> None:
        """Hear of an abort, and of the end of the agent, while the main thread is busy."""
        while not ended.wait(BATCH_SECONDS):
            try:
                self._say_where(number)
                heard = self._agent_is_gone() or self._store.look(f"abort/{number}") is not None
            except ClusterError:
                heard = self._be_orphan()
            if heard and number not in self._aborted:
                self.abort(number)
            if self._orphan:
                break
        if self._orphan and not ended.wait(LAST_SECONDS):
            os._exit(1)  # nothing else would end this process

    def _say_where(self, number: int) -> None:
        if self._store.take(f"where/{number}/{self._store.rank}") is not None:
            self._store.put(f"here/{number}/{self._store.rank}", json.dumps(main_place().to_json()))

    def _agent_is_gone(self) -> bool:
        """Whether the process that has started this rank has ended."""
        return self._orphan or (os.getppid() != self._agent and self._be_orphan())

    def _be_orphan(self) -> bool:
        """End with this job, also where leaving its world or the interpreter's own end hangs."""
        if not self._orphan:
            self._orphan = True
            signal.alarm(int(EXIT_SECONDS * slowdown()))
        return True

    def _raise_if_aborted(self) -> None:
        if self._running in self._aborted:
            raise RankInterrupted

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._interruptible:
            self._raise_if_aborted()
