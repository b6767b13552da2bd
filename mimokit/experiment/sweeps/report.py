"""Shows a sweep in a terminal: bars where there is one, plain lines elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mimokit.analysis.run_info import health_sentences
from mimokit.experiment.prepare import score_text
from mimokit.experiment.refusals import REFUSED
from mimokit.experiment.sweeps.experiments import Experiment
from mimokit.experiment.sweeps.records import NOT_DONE, ExperimentRecord, ExperimentStatus
from mimokit.progress import bars
from mimokit.samples import EvaluationSample, Sample, StepSample
from mimokit.tables import Section
from mimokit.units import counted, seconds_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from mimokit.experiment.sweeps.runner import SweepResult, SweepRun

FAILED, INTERRUPTED = 1, 130
"""Exit status of a sweep in which an experiment failed, and of one that Ctrl-C ended."""


def say_refusals(chosen: Iterable[Experiment], console: Console) -> None:
    """Name every experiment that cannot run, with its sentences."""
    for experiment in chosen:
        if experiment.refusal is not None:
            console.print(f"{experiment.name} cannot run:", markup=False, highlight=False)
            for sentence in experiment.sentences:
                console.print(f"  {sentence}", markup=False, highlight=False)


def say_checkpoints(chosen: Iterable[Experiment], console: Console) -> None:
    """Name the checkpoint that each experiment goes on from."""
    for experiment in chosen:
        if experiment.refusal is None and experiment.config is not None:
            place = experiment.config.runtime.resume_from
            console.print(f"{experiment.name} goes on from {place}", markup=False, highlight=False)


class Following:
    """Shows a sweep until it ends."""

    def __init__(self, sweep: SweepRun, console: Console) -> None:
        self.sweep = sweep
        self._console = console
        self._interrupts = 0
        begun = sweep.experiments
        make = Bars if console.is_terminal else Lines
        self._show: Bars | Lines = make(sweep, console, begun)
        for record in begun:
            if record.status is ExperimentStatus.SKIPPED or (record.message and not record.ended):
                self._show.say(_state(record))
        if all(record.ended for record in begun):
            self._show.say("Nothing is left to run.")

    def interrupt(self) -> None:
        """Stop the experiments in progress after their iteration; a second time at once."""
        self._interrupts += 1
        if self._interrupts == 1:
            self._show.say("Stopping after this iteration; press Ctrl-C again to stop at once.")
            self.sweep.stop()
        else:
            self.sweep.abort()

    def wait(self) -> int:
        """Wait for the end, say what failed, and return the exit status.

        Raises:
            KeyboardInterrupt: the wait was interrupted; it may be called again.
        """
        self.sweep.wait_ended()
        result = self.sweep.result()
        self._show.close()
        _say_end(result, self._console)
        if self._interrupts:
            return INTERRUPTED
        if all(record.status is ExperimentStatus.REFUSED for record in result.experiments):
            return REFUSED
        return FAILED if any(record.status in NOT_DONE for record in result.experiments) else 0


def follow(sweep: SweepRun, console: Console) -> int:
    """Show a sweep until it ends, then what failed; return the exit status.

    The first Ctrl-C stops the experiments in progress after their iteration, the second one at
    once.
    """
    following = Following(sweep, console)
    while True:
        try:
            return following.wait()
        except KeyboardInterrupt:
            following.interrupt()


def _say_end(result: SweepResult, console: Console) -> None:
    failed = [record for record in result.experiments if record.status in NOT_DONE]
    if failed:
        rows = [(record.name, str(record.status), record.message) for record in failed]
        console.print(Section("Not completed", ("experiment", "", "why"), rows))
    for record in result.experiments:
        if record.status is not ExperimentStatus.SKIPPED:
            for sentence in health_sentences(record.name, record.directory):
                console.print(sentence, markup=False, highlight=False)
    directory = result.directory
    if len(result.experiments) == 1:
        directory = result.experiments[0].directory
    console.print(f"Results are in {directory}", markup=False, highlight=False)


class Lines:
    """A line when an experiment begins or ends, and every `log_interval` iterations."""

    def __init__(
        self, sweep: SweepRun, console: Console, begun: Sequence[ExperimentRecord]
    ) -> None:
        self._sweep = sweep
        self._console = console
        self._lock = threading.Lock()
        self._told: dict[str, ExperimentStatus] = {
            record.name: ExperimentStatus.WAITING for record in begun if not record.ended
        }
        self._several = len(sweep.experiments) > 1
        sweep.on_change(lambda _: self._note())
        sweep.on_sample(self._sample)

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Print what has ended since."""
        self._note()

    def _note(self) -> None:
        with self._lock:
            records = self._sweep.experiments
            for number, record in enumerate(records, start=1):
                if self._told.get(record.name, record.status) != record.status:
                    self._told[record.name] = record.status
                    self.say(f"[{number}/{len(records)}] {_state(record)}")

    def _sample(self, name: str, sample: Sample) -> None:
        text = _line(sample, self._sweep.log_interval(name))
        if text is not None:
            self._note()
            self.say(f"{name}: {text}" if self._several else text)


class Bars:
    """A bar over the experiments and one for each that is in progress."""

    def __init__(
        self, sweep: SweepRun, console: Console, begun: Sequence[ExperimentRecord]
    ) -> None:
        self._sweep = sweep
        self._lock = threading.Lock()
        self._progress: Progress = _progress(console)
        self._all = self._progress.add_task("experiments", total=len(sweep.experiments), loss="")
        self._tasks: dict[str, TaskID] = {}
        self._ended = {record.name for record in begun if record.ended}
        self._progress.start()
        sweep.on_change(lambda _: self._note())
        sweep.on_sample(self._sample)

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self._progress.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the last state on the screen."""
        self._note()
        self._progress.stop()

    def _note(self) -> None:
        with self._lock:
            records = self._sweep.experiments
            for record in records:
                if record.status is ExperimentStatus.RUNNING:
                    self._move(record)
                elif record.ended and record.name not in self._ended:
                    self._ended.add(record.name)
                    if record.name in self._tasks:
                        self._progress.remove_task(self._tasks.pop(record.name))
                    self.say(_state(record))
            self._progress.update(self._all, completed=len(self._ended))

    def _move(self, record: ExperimentRecord) -> None:
        if record.name not in self._tasks:
            task = self._progress.add_task(record.name, total=record.iterations, loss="")
            self._tasks[record.name] = task
        loss = "" if record.loss is None else f"loss {record.loss:.3f}"
        self._progress.update(self._tasks[record.name], completed=record.iteration, loss=loss)

    def _sample(self, name: str, sample: Sample) -> None:
        if isinstance(sample, EvaluationSample):
            self.say(f"{name}: {_tested(sample)}")


def _progress(console: Console) -> Progress:
    from rich.progress import TextColumn

    return bars(console, TextColumn("{task.fields[loss]}", markup=False))


def _line(sample: Sample, interval: int) -> str | None:
    if isinstance(sample, EvaluationSample):
        return _tested(sample)
    if isinstance(sample, StepSample) and sample.rank == 0 and sample.loss is not None:
        due = sample.iteration % interval == 0
        return f"iteration {sample.iteration}: loss {sample.loss:.4f}" if due else None
    return None


def _tested(sample: EvaluationSample) -> str:
    return f"{sample.task}: {score_text(sample.exact_match, sample.chance)}"


def _state(record: ExperimentRecord) -> str:
    if record.status is ExperimentStatus.RUNNING:
        text = f"{record.name}: started on {counted(record.ranks or 0, 'rank')}"
        return f"{text} ({record.message})" if record.message else text
    text = f"{record.name}: {record.status}"
    if record.seconds is not None and record.status is not ExperimentStatus.SKIPPED:
        text += f" after {seconds_text(record.seconds)}"
    if record.loss is not None:
        text += f", loss {record.loss:.4f}"
    return f"{text} ({record.message})" if record.message else text
