"""The samples of a run, kept in order and passed to every listener."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any


class Sample(dict[str, Any]):
    """What a rank emitted, with who emitted it.

    Attributes:
        sequence: how many samples that rank had emitted before.
    """

    __slots__ = ("rank", "sequence")

    def __init__(self, values: dict[str, Any], rank: int, sequence: int) -> None:
        super().__init__(values)
        self.rank = rank
        self.sequence = sequence


class SampleLog:
    """Samples in order of arrival, with a separate thread for each listener.

    A slow listener delays neither the run nor the other listeners.
    """

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._received: dict[int, int] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._listeners: list[threading.Thread] = []

    def receive(self, rank: int, batch: list[bytes]) -> None:
        """Add one rank's next samples."""
        with self._changed:
            first = self._received.get(rank, 0)
            self._received[rank] = first + len(batch)
            self._samples.extend(
                Sample(pickle.loads(blob), rank, first + place) for place, blob in enumerate(batch)
            )
            self._changed.notify_all()

    def count(self, rank: int) -> int:
        """The number of samples that have come from one rank."""
        return self._received.get(rank, 0)

    def snapshot(self) -> list[Sample]:
        """All samples so far."""
        with self._changed:
            return list(self._samples)

    def listen(self, callback: Callable[[Sample], object]) -> None:
        """Call `callback` with every sample, first those that are already there."""
        thread = threading.Thread(
            target=self._deliver, args=(callback,), name="mimokit-samples", daemon=True
        )
        self._listeners.append(thread)
        thread.start()

    def close(self) -> None:
        """No more samples will come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def drain(self, timeout: float | None = None) -> None:
        """Wait until every listener has seen every sample."""
        for thread in self._listeners:
            if thread is not threading.current_thread():
                thread.join(timeout)

    def _deliver(self, callback: Callable[[Sample], object]) -> None:
        seen = 0
        while fresh := self._wait_beyond(seen):
            seen += len(fresh)
            for sample in fresh:
                callback(sample)

    def _wait_beyond(self, seen: int) -> list[Sample]:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._samples) > seen)
            return self._samples[seen:]
