"""A training run that begins again from its last checkpoint where a rank is lost."""

import contextlib
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from mimokit.cluster import ClusterError, ClusterRun, EnginesMissing, RankError, RunAborted
from mimokit.config import ConfigError
from mimokit.packed_list import PackedList
from mimokit.planning.checkpoints import (
    Checkpoint,
    DamagedCheckpointError,
    read_checkpoint,
    steps_in,
)
from mimokit.samples import (
    AnswersSample,
    EvaluationSample,
    HealthSample,
    Sample,
    StepSample,
    TraceSample,
    from_wire,
)
from mimokit.units import counted

_ENDING = 60.0
"""Seconds that the engines of an attempt may take to come back or to be gone."""

MISSING_SECONDS = 600.0
"""How long a run waits for engines of others that are gone or cannot be reached."""
_PAUSE = 1.0
"""Seconds until it looks for them again."""

_WHERE = re.compile(r"[.;] [Ii]t was here:$")
"""What leads from the first line of an error to the stack of a rank."""

BEGUN_AGAIN = "begun_again"
"""What is remembered with an attempt that others came before."""

_OF_AN_ITERATION = (StepSample, EvaluationSample, AnswersSample, HealthSample, TraceSample)

Message = dict[str, Any]
Listener = Callable[[Message], object]


class FailedTwiceError(ClusterError):
    """Training failed at the same step again after it had begun anew."""

    def __init__(self, step: int, cause: BaseException) -> None:
        self.step = step
        self.rank = getattr(cause, "rank", None)
        self.traceback = getattr(cause, "traceback", None)
        super().__init__(
            f"training failed twice at step {step} (counted from 0), so it does not begin again; "
            f"mend this first: {cause}"
        )


@dataclass(frozen=True)
class Restart:
    """An attempt that ended, and what came after it.

    Attributes:
        step: that failed, counted from 0.
        resumed: steps of the checkpoint that the next attempt went on from; 0: it began anew.
        seconds: from the failure until the next attempt was submitted.
    """

    step: int
    resumed: int
    cause: str
    seconds: float


@dataclass(frozen=True)
class Supervised:
    """How often a run may begin again, and has.

    Attributes:
        left: attempts that may still begin.
        begun: steps that were done before the first attempt.
    """

    checkpoints: str
    left: int
    begun: int = 0
    restarts: tuple[Restart, ...] = ()

    @property
    def resumed(self) -> int:
        """Steps that were done before the attempt that is under way."""
        return self.restarts[-1].resumed if self.restarts else self.begun


class RestartedRun:
    """Attempts one after another, with the face of one run.

    What ranks report is heard once: of a step that is computed again, only what has not come.

    Args:
        begin: starts an attempt that goes on from a checkpoint, or from where the first one began.
    """

    def __init__(
        self,
        run: ClusterRun,
        begin: Callable[[Checkpoint | None], ClusterRun],
        supervised: Supervised,
    ) -> None:
        self._run, self._begin, self._supervised = run, begin, supervised
        self._lock = threading.RLock()
        self._messages = PackedList[Message]()
        self._listeners: list[Listener] = []
        self._heard = _Heard()
        self._reached = 0
        self._stopping = False
        self._error: BaseException | None = None
        self._results: list[Any] = []
        self._note: Mapping[str, Any] = {}
        self._finished, self._ended = threading.Event(), threading.Event()
        self._started = time.monotonic()
        self._stopped: float | None = None
        threading.Thread(target=self._supervise, name="mimokit-restarts", daemon=True).start()

    @property
    def restarts(self) -> tuple[Restart, ...]:
        """The attempts that ended early, and from where the run went on."""
        return self._supervised.restarts

    @property
    def done(self) -> bool:
        """Whether the last attempt has ended."""
        return self._finished.is_set()

    @property
    def elapsed(self) -> float:
        """Seconds since the first attempt began; constant after the end."""
        return (self._stopped or time.monotonic()) - self._started

    @property
    def sample_count(self) -> int:
        """The number of samples that were heard."""
        return len(self._messages)

    def each_sample(self) -> Iterator[Message]:
        """Yield what was heard of all attempts."""
        place = 0
        while messages := self._some_from(place):
            yield from messages
            place += len(messages)

    def on_sample(self, callback: Listener) -> None:
        """Call back with every sample, earlier ones first."""
        with self._lock:
            for message in self._messages.from_place(0):
                callback(message)
            self._listeners.append(callback)

    def drain(self, timeout: float | None = None) -> None:
        """Wait until those who are called back have every sample of the attempt."""
        self._run.drain(timeout)

    def _some_from(self, place: int) -> list[Message]:
        with self._lock:
            return self._messages.some_from(place)

    def result(self, timeout: float | None = None) -> list[Any]:
        """Wait for the result of the last attempt.

        Raises:
            TimeoutError: it did not end within the timeout.
            FailedTwiceError: two attempts failed at the same step.
            ClusterError: the last attempt failed.
        """
        if not self._finished.wait(timeout):
            raise TimeoutError(f"the run has no result after {timeout:g} s")
        if self._error is not None:
            raise self._error
        return list(self._results)

    def stop(self) -> None:
        """Stop after the current iteration; a rank that fails meanwhile ends the run."""
        self._stopping = True
        self._run.stop()

    def abort(self) -> None:
        """End the run now."""
        self._stopping = True
        self._run.abort()

    def wait_ended(self, timeout: float | None = None) -> bool:
        """Wait until every rank of the last attempt is back or gone."""
        return self._ended.wait(timeout)

    def remember(self, note: Mapping[str, Any]) -> None:
        """Remember something with this attempt and those after it."""
        self._note = note
        self._run.remember(note)

    def _follow(self, run: ClusterRun) -> None:
        self._reached = self._supervised.resumed
        run.end_idle()
        run.on_sample(self._hear)

    def _attempt_with_patience(self, checkpoint: Checkpoint | None) -> ClusterRun | None:
        """Begin when all engines are there again; None if the user stops the run before that."""
        deadline, told = time.monotonic() + MISSING_SECONDS, False
        while not self._stopping:
            try:
                return self._begin(checkpoint)
            except EnginesMissing as error:
                if time.monotonic() > deadline:
                    raise
                if not told:
                    _tell(f"training waits to begin again: {error}")
                told = True
                time.sleep(_PAUSE)
        return None

    def _hear(self, message: Message) -> None:
        sample = from_wire(message)
        with self._lock:
            if isinstance(sample, StepSample):
                self._reached = max(self._reached, sample.iteration + 1)
            if not self._heard.is_new(sample):
                return
            self._messages.append(message)
            for listener in self._listeners:
                listener(message)

    def _supervise(self) -> None:
        try:
            self._follow(self._run)
            while (error := self._await_attempt()) is not None:
                if not self._begin_again(error):
                    break
        except BaseException as unexpected:
            self._error = unexpected
        finally:
            self._stopped = time.monotonic()
            self._finished.set()
            del self._begin  # a run that is kept does not keep its cluster
            self._run.wait_ended()
            self._ended.set()

    def _await_attempt(self) -> Exception | None:
        """Return why an attempt failed; None: it has a result."""
        try:
            self._results = self._run.result()
        except Exception as error:
            return error
        finally:
            self._run.wait_ended(_ENDING)
            self._run.drain()
        return None

    def _begin_again(self, error: Exception) -> bool:
        failed_at, began = self._reached, time.monotonic()
        self._error = error
        if isinstance(error, RunAborted) or self._stopping:
            return False
        damage = damage_in(error)
        if self._ends(error, failed_at) if damage is None else not self._pass_over(damage):
            return False
        checkpoint = _newest_left(Path(self._supervised.checkpoints))
        try:
            run = self._attempt_with_patience(checkpoint)
        except ClusterError as problem:
            error.add_note(f"training could not begin again: {problem}")
            return False
        if run is None:
            return False
        resumed = self._supervised.begun if checkpoint is None else checkpoint.step
        took, supervised = time.monotonic() - began, self._supervised
        if damage is None:
            cause = _WHERE.sub("", str(error).split("\n", 1)[0])
            restarts = (*self.restarts, Restart(failed_at, resumed, cause, took))
            supervised = replace(supervised, left=supervised.left - 1, restarts=restarts)
        else:  # the restart that met the damage goes on from elsewhere
            *earlier, last = self.restarts
            last = replace(last, resumed=resumed, seconds=last.seconds + took)
            supervised = replace(supervised, restarts=(*earlier, last))
        self._go_on(run, supervised)
        return True

    def _ends(self, error: Exception, failed_at: int) -> bool:
        if self.restarts and self.restarts[-1].step == failed_at:
            self._error = FailedTwiceError(failed_at, error)
            return True
        if not self._supervised.left:
            done = counted(len(self.restarts), "restart")
            error.add_note(f"there were {done} before, and no more were allowed")
        return not self._supervised.left

    def _pass_over(self, damage: str) -> bool:
        """Rename the checkpoint that the ranks refuse: they alone compare all bytes.

        That which a user has named is not passed over.
        """
        step = self._supervised.resumed
        directory = steps_in(Path(self._supervised.checkpoints)).get(step)
        if directory is None or not self.restarts:
            return False
        return _set_aside(step, directory, damage)

    def _go_on(self, run: ClusterRun, supervised: Supervised) -> None:
        self._run, self._error, self._supervised = run, None, supervised
        run.remember({**self._note, BEGUN_AGAIN: len(self.restarts)})
        self._follow(run)
        if self._stopping:
            run.stop()


def _tell(sentence: str) -> None:
    with contextlib.suppress(RuntimeWarning):  # where warnings are errors, the run goes on as well
        warnings.warn(sentence, RuntimeWarning, stacklevel=2)


def _newest_left(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint that is whole, and rename later ones, which are damaged.

    Ranks refuse a folder with checkpoints of later steps than that from which they go on.
    """
    for step, directory in sorted(steps_in(folder).items(), reverse=True):
        try:
            return read_checkpoint(directory)
        except ConfigError as error:
            _set_aside(step, directory, str(error))
    return None


def _set_aside(step: int, directory: Path, why: str) -> bool:
    aside = directory.with_name(f"damaged-{directory.name}-{time.time_ns()}")
    try:
        directory.rename(aside)
    except OSError:
        return False
    folder = directory.parent
    _tell(f"the checkpoint of step {step} in {folder} is not whole: it is {aside} now. {why}")
    return True


def damage_in(error: Exception) -> str | None:
    """Return why ranks refuse a checkpoint as damaged; None: it is another error."""
    if isinstance(error, RankError) and error.type_name == DamagedCheckpointError.__name__:
        return error.message
    return None


RunOnRanks: TypeAlias = ClusterRun | RestartedRun
"""What goes on in the background."""


class _Heard:
    """What has come of each rank, so that of a step that is computed again nothing comes twice."""

    def __init__(self) -> None:
        self._last: dict[tuple[object, ...], int] = {}

    def is_new(self, sample: Sample) -> bool:
        if not isinstance(sample, _OF_AN_ITERATION):
            return True  # said once in each attempt, or under a name that no other attempt uses
        task = sample.task if isinstance(sample, EvaluationSample) else None
        key = type(sample), sample.rank, task
        new = sample.iteration > self._last.get(key, -1)
        if new:
            self._last[key] = sample.iteration
        return new
