"""The samples of a run, kept in order and passed to every listener."""

import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mimokit.packed_list import PackedList


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

    A slow listener delays neither the run nor the other listeners. Samples are kept as they came,
    since long runs have many, and each reader gets its own copy.
    """

    def __init__(self) -> None:
        self._samples = PackedList[tuple[int, int, bytes]]()
        self._received: dict[int, int] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._listeners: list[threading.Thread] = []

    def receive(self, rank: int, batch: list[bytes]) -> None:
        """Add one rank's next samples."""
        with self._changed:
            first = self._received.get(rank, 0)
            self._received[rank] = first + len(batch)
            for place, blob in enumerate(batch):
                self._samples.append((rank, first + place, blob))
            self._changed.notify_all()

    def await_counts(self, counts: Mapping[int, int], timeout: float) -> None:
        """Wait until so many samples of ranks have come, or until the time is over."""
        with self._changed:
            self._changed.wait_for(
                lambda: all(self._received.get(rank, 0) >= n for rank, n in counts.items()), timeout
            )

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[Sample]:
        place = 0
        while fresh := self._some_from(place):
            place += len(fresh)
            yield from fresh

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
        """Wait until every listener has seen every sample, or until the time is over."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for thread in self._listeners:
            if thread is not threading.current_thread():
                thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def _deliver(self, callback: Callable[[Sample], object]) -> None:
        seen = 0
        while fresh := self._wait_beyond(seen):
            seen += len(fresh)
            for sample in fresh:
                callback(sample)

    def _wait_beyond(self, seen: int) -> list[Sample]:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._samples) > seen)
        return self._some_from(seen)

    def _some_from(self, place: int) -> list[Sample]:
        with self._changed:
            kept = self._samples.some_from(place)
        return [Sample(pickle.loads(blob), rank, sequence) for rank, sequence, blob in kept]
