"""The state of every experiment of a sweep, and who is notified when it changes."""

import threading
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

NOTICE_SECONDS = 0.1
"""The shortest time between two notices of one listener."""


class ExperimentStatus(StrEnum):
    """What has become of an experiment."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    REFUSED = "refused"
    SKIPPED = "skipped"
    STOPPED = "stopped"


NOT_DONE = (ExperimentStatus.FAILED, ExperimentStatus.REFUSED)
"""What makes a sweep fail."""


@dataclass(frozen=True)
class ExperimentRecord:
    """One experiment of a sweep, as it is now.

    Attributes:
        iteration: iterations that rank 0 has reported.
        iterations: that it has in all; None if that is not known.
        seconds: since its start, or that it took; None before.
        message: why it failed, was rejected, skipped or stopped; else empty.
    """

    name: str
    status: ExperimentStatus
    ranks: int | None
    iteration: int
    iterations: int | None
    loss: float | None
    seconds: float | None
    message: str
    directory: Path

    @property
    def ended(self) -> bool:
        """Whether nothing more becomes of it in this sweep."""
        return self.status not in (ExperimentStatus.WAITING, ExperimentStatus.RUNNING)


class Board:
    """The records of a sweep. All threads may read and write it."""

    def __init__(self, records: Iterable[ExperimentRecord]) -> None:
        self._records = {record.name: record for record in records}
        self._changed = threading.Condition()
        self._changes = 0
        self._closed = False

    @property
    def records(self) -> tuple[ExperimentRecord, ...]:
        """All records, in the order of the sweep."""
        with self._changed:
            return tuple(self._records.values())

    def __getitem__(self, name: str) -> ExperimentRecord:
        with self._changed:
            return self._records[name]

    def update(self, name: str, **changes: Any) -> None:
        """Change fields of a record, and notify the listeners."""
        with self._changed:
            self._records[name] = replace(self._records[name], **changes)
            self._changes += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing changes any more; the listeners are notified a last time."""
        with self._changed:
            self._closed = True
            self._changes += 1
            self._changed.notify_all()

    def listen(self, callback: Callable[[], object]) -> threading.Thread:
        """Call back now and after changes, at most ten times per second, from a new thread."""
        thread = threading.Thread(
            target=self._deliver, args=(callback,), name="mimokit-sweep-notices", daemon=True
        )
        thread.start()
        return thread

    def _deliver(self, callback: Callable[[], object]) -> None:
        seen, closed = -1, False
        while not closed:
            with self._changed:
                self._changed.wait_for(lambda: self._changes != seen)  # noqa: B023
                seen, closed = self._changes, self._closed
            try:
                callback()
            except Exception as error:
                warnings.warn(
                    f"a listener of a sweep raised {type(error).__name__} ({error}) and is "
                    "called no more; the sweep goes on",
                    stacklevel=1,
                )
                return
            if not closed:
                time.sleep(NOTICE_SECONDS)
