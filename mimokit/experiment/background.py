"""A run in the background: its samples, its end, and the folder that is completed at the end."""

from __future__ import annotations

import contextlib
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mimokit.experiment.restarts import RunOnRanks
from mimokit.samples import Sample

if TYPE_CHECKING:
    from mimokit.experiment.sweeps.runner import SweepRun

Result = TypeVar("Result")

_PATIENCE = 10.0
"""Seconds that an interrupted run may take to finish its iteration."""
_WRITING = 30.0
"""Seconds that the rows of a run that has ended may take to be appended."""
_ABORT_PATIENCE = 10.0
"""Seconds that an aborted run may take to end."""


def end_run(run: RunOnRanks | SweepRun) -> None:
    """Stop after the current iteration; abort if that takes too long, or at an interrupt."""
    with contextlib.suppress(KeyboardInterrupt):
        run.stop()
        run.wait_ended(_PATIENCE)
    if not run.done:
        run.abort()
    # Until then the cluster refuses the next run.
    run.wait_ended(_ABORT_PATIENCE)


class BackgroundRun(ABC, Generic[Result]):
    """A run in the background; the notebook stays free.

    Its rows are appended to the tables of its folder as they come, and the folder is completed at
    the end, whether or not anybody waits for the result.
    """

    def __init__(self, run: RunOnRanks, directory: Path) -> None:
        """Take a run that has been submitted; a subclass is ready before it calls this."""
        self._run = run
        self.directory = directory
        self._result: Result | None = None
        self._is_complete = False
        self._cause: Exception | None = None
        self._lock = threading.Lock()
        self._recording = threading.Lock()
        self._taken = threading.Condition()
        self._messages_taken = 0
        self._unwritten = False
        run.on_sample(self._take)
        threading.Thread(target=self._keep, name="mimokit-results", daemon=True).start()

    @abstractmethod
    def _sample_of(self, message: Mapping[str, Any]) -> Sample | None:
        """Return the sample of a message; None if it is for the folder alone."""

    @abstractmethod
    def _record(self, message: Mapping[str, Any]) -> None:
        """Write what a message says; what an OSError keeps out, `_complete` writes again."""

    @abstractmethod
    def _complete(self, error: Exception | None) -> None:
        """Complete the folder; after an OSError it is called again."""

    @abstractmethod
    def _collect(self) -> Result:
        """Return the result of a run whose folder is complete."""

    @property
    def samples(self) -> list[Sample]:
        """What the ranks have sent so far."""
        return list(self.each_sample())

    def each_sample(self) -> Iterator[Sample]:
        """Yield what the ranks have sent so far, one after another."""
        for message in self._run.each_sample():
            sample = self._sample_of(message)
            if sample is not None:
                yield sample

    def on_sample(self, callback: Callable[[Sample], None]) -> None:
        """Call back for every sample, earlier ones included, from a separate thread."""

        def hear(message: dict[str, object]) -> None:
            sample = self._sample_of(message)
            if sample is not None:
                callback(sample)

        self._run.on_sample(hear)

    def drain(self, timeout: float | None = None) -> None:
        """Wait until every callback has had every sample of a run that has ended."""
        self._run.drain(timeout)

    @property
    def done(self) -> bool:
        """Whether the run has ended, successfully or not."""
        return bool(self._run.done)

    @property
    def elapsed(self) -> float:
        """Seconds since the start; constant after the end."""
        return float(self._run.elapsed)

    def stop(self) -> None:
        """Ask all ranks to stop after the current iteration; the result is kept."""
        self._run.stop()

    def abort(self, because: Exception | None = None) -> None:
        """End the run at once; the ranks become free, the current iteration is lost.

        Args:
            because: what `result` raises, and error.json says, instead of `RunAborted`.
        """
        self._cause = self._cause or because
        self._run.abort()

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end, complete the run's folder and return the tables.

        Raises:
            TimeoutError: the run did not end within the timeout.
            KeyboardInterrupt: the wait was interrupted; the run is stopped then, and a second
                call returns its result so far.
            RankError: a rank failed; error.json in the run's folder says which and how.
            OSError: the folder cannot be written (any more). The samples are kept: call again
                when it can.
        """
        try:
            self._run.result(timeout)
        except TimeoutError:
            raise
        except KeyboardInterrupt:
            end_run(self._run)
            raise
        except Exception as error:
            failure = self._reason(error)
            try:
                self._write(failure)
            except OSError as unwritten:
                _note(failure, f"{_incomplete(self.directory)}: {unwritten}")
            raise failure from None
        try:
            return self._write(None)
        except OSError as unwritten:
            _note(unwritten, f"{_incomplete(self.directory)}; call result() again when it can be")
            raise

    def _reason(self, error: Exception) -> Exception:
        from mimokit.cluster import RunAborted

        return self._cause if self._cause and isinstance(error, RunAborted) else error

    def _take(self, message: dict[str, object]) -> None:
        try:
            with self._recording:
                if not self._is_complete:  # else a slow disk would get rows again
                    self._record(message)
        except OSError as error:
            self._say_unwritten(error)
        with self._taken:
            self._messages_taken += 1
            self._taken.notify_all()

    def _say_unwritten(self, error: OSError) -> None:
        if self._unwritten:
            return
        self._unwritten = True
        with contextlib.suppress(RuntimeWarning):  # where warnings are errors, the run goes on
            warnings.warn(
                f"the run goes on, but its results cannot be written to {self.directory} "
                f"({error.strerror or error}): rows are kept and written as soon as they can be",
                RuntimeWarning,
                stacklevel=2,
            )

    def _keep(self) -> None:
        """Complete the folder even if `result` is never called; `result` raises what fails."""
        with contextlib.suppress(Exception):
            self.result()

    def _write(self, error: Exception | None) -> Result:
        with self._lock:
            if not self._is_complete:
                self._await_rows()
                with self._recording:
                    self._complete(error)
                    self._is_complete = True
            if self._result is None:
                self._result = self._collect()
            return self._result

    def _await_rows(self) -> None:
        """Wait until every message has been taken; a slow disk is not waited for to its end."""
        sent = self._run.sample_count
        with self._taken:
            self._taken.wait_for(lambda: self._messages_taken >= sent, _WRITING)


def _incomplete(directory: Path) -> str:
    return f"the results in {directory} could not be written completely"


def _note(error: BaseException, text: str) -> None:
    if text not in getattr(error, "__notes__", ()):
        error.add_note(text)
