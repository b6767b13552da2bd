"""The engine's standing side: hears the client while a function runs, and interrupts that function.

Messages come over ipyparallel's control channel, which has a separate thread and works wherever
the engine is reachable: `stop` raises a flag, `abort` breaks the world's connections and raises
`RankInterrupted` in the main thread, `stack` asks where that thread is.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from mimokit.cluster import rank
from mimokit.cluster.worker.membership import Membership
from mimokit.cluster.worker.sender import SampleSender
from mimokit.cluster.worker.stack import main_place, write_stack_on_signal

STOP_MESSAGE = "mimokit_stop_request"
ABORT_MESSAGE = "mimokit_abort_request"
STACK_MESSAGE = "mimokit_stack_request"
INTERRUPT_SIGNAL = signal.SIGUSR2
UNWINDING_SECONDS = 0.1
"""How long a function may take to return by itself once the world's connections are broken.

An exception raised while it unwinds would keep `finally` blocks from doing their work.
"""


class RankInterrupted(BaseException):
    """Raised in the running function when the client aborts the run."""


class RankRun:
    """The run in progress on this rank."""

    def __init__(self, run_id: str, sender: SampleSender) -> None:
        self.run_id = run_id
        self.sender = sender
        self.stopping = False
        self.returned = threading.Event()

    def emit(self, sample: Mapping[str, Any]) -> None:
        """Send one sample to the client."""
        self.sender.add(sample)

    def flush(self) -> None:
        """Send the samples that wait; returns when they have left."""
        self.sender.flush()


class EngineSession:
    """What an engine, or a process of a job, keeps from one run to the next.

    Args:
        kernel: of the engine; None: nothing but the methods here speaks to this process.
    """

    def __init__(self, kernel: Any | None) -> None:
        self.kernel = kernel
        self.membership = Membership()
        self.aborted: set[str] = set()
        self.stopped: set[str] = set()
        self._current: RankRun | None = None
        self._interruptible = False
        signal.signal(INTERRUPT_SIGNAL, self._on_signal)
        write_stack_on_signal()
        if kernel is not None:
            hear(kernel, STOP_MESSAGE, lambda content: self.stop(content["run_id"]))
            hear(kernel, ABORT_MESSAGE, lambda content: self.abort(content["run_id"]))
            hear(kernel, STACK_MESSAGE, lambda content: {"place": main_place().to_json()})

    @contextmanager
    def running(self, run: RankRun) -> Iterator[None]:
        """Make `run` the one that messages and `mimokit.cluster.emit` speak to."""
        self._current = run
        rank.set_current(run)
        if run.run_id in self.stopped:
            run.stopping = True
        try:
            yield
        finally:
            self._current = None
            rank.set_current(None)
            self.aborted.clear()
            self.stopped.clear()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Within this block an abort raises `RankInterrupted`."""
        try:
            self._interruptible = True
            self.raise_if_aborted()
            yield
        finally:
            self._interruptible = False
            if self._current is not None:
                self._current.returned.set()

    def raise_if_aborted(self) -> None:
        """Raise `RankInterrupted` if the client has aborted the run in progress."""
        if self._current is not None and self._current.run_id in self.aborted:
            raise RankInterrupted

    def stop(self, run_id: str) -> None:
        """Raise the flag of a run."""
        # Remembered, since the run may still be waiting in the engine's queue.
        self.stopped.add(run_id)
        run = self._current
        if run is not None and run.run_id == run_id:
            run.stopping = True

    def abort(self, run_id: str) -> None:
        """Interrupt a run; any thread but the main one may call it."""
        self.aborted.add(run_id)  # remembered as well
        run = self._current
        if run is not None and run.run_id == run_id:
            run.stopping = True
            self.membership.break_off()
            main = threading.main_thread().ident
            if not run.returned.wait(UNWINDING_SECONDS) and main is not None:
                signal.pthread_kill(main, INTERRUPT_SIGNAL)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._interruptible:
            self.raise_if_aborted()


def hear(
    kernel: Any, kind: str, action: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
) -> None:
    """Have an engine act on control messages of a kind, and answer what that returns."""

    def handle(stream: Any, identities: Any, message: Any) -> None:
        answer = {"status": "ok", **(action(message["content"]) or {})}
        kernel.session.send(
            stream, "mimokit_reply", content=answer, parent=message, ident=identities
        )

    kernel.control_handlers[kind] = handle


_session: EngineSession | None = None


def open_world_session(kernel: Any | None) -> EngineSession:
    """Open the session of this process (in its main thread)."""
    global _session
    _session = EngineSession(kernel)
    return _session


def engine_session() -> EngineSession:
    """This engine's session, opened at the first call (in its main thread)."""
    if _session is None:
        from ipyparallel.engine.kernel import IPythonParallelKernel

        _write_last_words_to_the_log()
        return open_world_session(IPythonParallelKernel.instance())
    return _session


def _write_last_words_to_the_log() -> None:
    # ipykernel hands on what libraries write to descriptor 2, in a thread: where gloo ends the
    # process, its reason would be lost with that thread.
    with suppress(OSError):
        os.dup2(sys.stderr.fileno(), 2)
