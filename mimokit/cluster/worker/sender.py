"""Send a rank's samples to the client in batches, over the engine's signed publish channel."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Mapping
from typing import Any

BATCH_SECONDS = 0.1
"""Least time between two messages in seconds; samples wait for the next one together."""
BATCH_SIZE = 256
"""How many samples leave at once without waiting."""
DATA_KEY = "mimokit.samples"


class SampleSender:
    """Collects samples; a background thread sends them.

    A message costs a busy rank about a millisecond of CPU time, most of it for threads that wake
    up. The thread therefore wakes once per message.
    """

    def __init__(self, kernel: Any, parent_header: dict[str, Any]) -> None:
        self._kernel = kernel
        self._parent_header = parent_header
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.emitted = 0

    def add(self, sample: Mapping[str, Any]) -> None:
        """Take one sample; pickled here, so that the caller may reuse its objects."""
        blob = pickle.dumps(dict(sample), protocol=pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._waiting.append(blob)
            self.emitted += 1
            if len(self._waiting) >= BATCH_SIZE:
                self._send()
        if self._thread is None:
            self._start()
        self._wake.set()

    def close(self) -> None:
        """Send the rest; nothing may be added afterwards."""
        self._closed.set()
        self._wake.set()
        with self._lock:
            self._send()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._tick, name="mimokit-sender", daemon=True)
        self._thread.start()

    def _tick(self) -> None:
        earliest = 0.0
        while not self._closed.is_set():
            self._wake.wait()
            early = earliest - time.monotonic()
            if early > 0:
                self._closed.wait(early)
            with self._lock:
                self._wake.clear()
                self._send()
            earliest = time.monotonic() + BATCH_SECONDS

    def _send(self) -> None:
        from ipyparallel.serialize import serialize_object

        if not self._waiting:
            return
        session = self._kernel.session
        buffers = serialize_object(
            {DATA_KEY: self._waiting},
            buffer_threshold=session.buffer_threshold,
            item_threshold=session.item_threshold,
        )
        session.send(
            self._kernel.iopub_socket,
            "data_message",
            content={"keys": [DATA_KEY]},
            parent=self._parent_header,
            buffers=buffers,
            ident=b"datapub",
        )
        self._waiting = []
