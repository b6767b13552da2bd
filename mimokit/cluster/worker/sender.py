"""Send a rank's samples to the client in batches, over the engine's signed publish channel."""

import pickle
import threading
import time
from collections.abc import Mapping
from typing import Any

from mimokit.cluster.run_record import RankRecorder

BATCH_SECONDS = 0.1
"""Least time between two messages in seconds; samples wait for the next one together."""
BATCH_SIZE = 256
"""How many samples leave at once without waiting."""
PASSED_SECONDS = 10.0
"""How long the thread of the kernel that sends messages may be behind."""
DATA_KEY = "mimokit.samples"


class SampleSender:
    """Collects the samples of a run; the sending thread of the process sends and records them.

    Args:
        kernel: of the engine, whose main thread makes this; None: samples are recorded alone.
    """

    def __init__(self, kernel: Any | None, record: RankRecorder | None = None) -> None:
        self._record = record
        self._kernel = kernel
        self._parent_header = {} if kernel is None else kernel.get_parent()["header"]
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        self.emitted = 0

    def add(self, sample: Mapping[str, Any]) -> None:
        """Take one sample; pickled here, so that the caller may reuse its objects."""
        blob = pickle.dumps(dict(sample), protocol=pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._waiting.append(blob)
            self.emitted += 1
            if len(self._waiting) >= BATCH_SIZE:
                self._send()
        _SENDING.wake(self)

    def close(self) -> None:
        """Send the rest; nothing may be added afterwards."""
        self.send()

    def flush(self) -> None:
        """Send what waits; returns when the kernel's own thread has passed it on."""
        self.send()
        if self._kernel is None:
            return
        passed = threading.Event()
        self._kernel.iopub_socket.schedule(passed.set)
        passed.wait(PASSED_SECONDS)

    def send(self) -> None:
        """Send what waits."""
        with self._lock:
            self._send()

    def _send(self) -> None:
        if not self._waiting:
            return
        if self._record is not None:
            self._record.add(self._waiting)
        if self._kernel is not None:
            self._publish(self._kernel)
        self._waiting = []

    def _publish(self, kernel: Any) -> None:
        from ipyparallel.serialize import serialize_object

        session = kernel.session
        buffers = serialize_object(
            {DATA_KEY: self._waiting},
            buffer_threshold=session.buffer_threshold,
            item_threshold=session.item_threshold,
        )
        session.send(
            kernel.iopub_socket,
            "data_message",
            content={"keys": [DATA_KEY]},
            parent=self._parent_header,
            buffers=buffers,
            ident=b"datapub",
        )


class _SendingThread:
    """The thread of this process that sends waiting samples, of one run after another.

    A message costs a busy rank about a millisecond of CPU time, most of it for threads that wake
    up. The thread therefore wakes once per message. One thread serves all runs, because ipykernel
    opens a pipe for each thread that sends, and closes it up to 10 s after the thread has ended.
    """

    def __init__(self) -> None:
        self._sender: SampleSender | None = None
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self, sender: SampleSender) -> None:
        self._sender = sender
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._tick, name="mimokit-sender", daemon=True)
            self._thread.start()
        self._wake.set()

    def _tick(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            sender, self._sender = self._sender, None
            if sender is not None:
                sender.send()
                time.sleep(BATCH_SECONDS)


_SENDING = _SendingThread()
