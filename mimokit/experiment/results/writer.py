"""Writes the results folder of a run while it goes on; nothing else does.

`mimokit.analysis.read_run` reads it.

    config.yaml            the finalized config
    experiment_info.json   layout, duration, code, machines, status
    metrics.csv            a row per iteration
    metrics_by_rank.csv    a row per iteration and rank
    evaluations.csv        a row per test on held-out samples
    trace.json             of a traced run
    profile/               files of PyTorch's profiler, one per rank
    health.json            what was wrong with what ranks held, and memory and times of each
    error.json             of a run that failed
    earlier/               earlier runs in the same folder

Rows are appended when they come, whole lines, so that a reader finds them while the run goes on,
and after this process was killed. At the end every table is replaced by one with all columns.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from mimokit.analysis import write_trace
from mimokit.cluster.errors import RunAborted
from mimokit.config.runtime import TENSORBOARD
from mimokit.experiment.restarts import Restart
from mimokit.experiment.results import info
from mimokit.experiment.results.folder import Folder
from mimokit.experiment.results.loggers import LoggedRun, RunLogger, call_loggers
from mimokit.experiment.results.tables import AppendedTable
from mimokit.planning.digests import digest_of_file
from mimokit.result_files import (
    BOARD,
    PROFILES,
    EachTime,
    RunFile,
    whole_file,
    without_secrets,
    write_evaluations,
    write_json,
    write_metrics,
)
from mimokit.samples import (
    EVALUATION_COLUMNS,
    MODULE_COLUMNS,
    STEP_COLUMNS,
    TOGETHER_COLUMNS,
    EvaluationSample,
    Iterations,
    ProfileSample,
    RankFacts,
    Sample,
    StepSample,
    TraceSample,
    by_iteration,
    module_column,
    reduce_ranks,
)


class RunWriter:
    """Writes one run into a claimed folder, which is released at the end."""

    def __init__(
        self, folder: Folder, setting: info.RunSetting, loggers: Sequence[RunLogger] = ()
    ) -> None:
        self.directory = folder.path
        self._folder = folder
        self._setting = setting
        self._loggers = list(loggers)
        self._facts: dict[int, RankFacts] = {}
        self._iterations = Iterations(setting.plan.world_size)
        self._completed: dict[int, int] = dict.fromkeys(range(setting.plan.world_size), 0)
        modules = [
            module_column(name, column)
            for name in setting.plan.modules
            for column in MODULE_COLUMNS
        ]
        path = self.directory
        self._by_rank = AppendedTable(path / RunFile.METRICS_BY_RANK, [*STEP_COLUMNS, *modules])
        self._steps = AppendedTable(path / RunFile.METRICS, [*TOGETHER_COLUMNS, *modules])
        self._evaluations = AppendedTable(path / RunFile.EVALUATIONS, EVALUATION_COLUMNS)
        runtime = setting.config.runtime
        board = Path(runtime.tensorboard_dir or path / BOARD)
        drawn = TENSORBOARD in runtime.chosen_loggers
        self._profiles = ProfileFiles(path, board if drawn else None)

    def begin(self) -> None:
        """Set an earlier run aside, write the config and that the run began; may raise OSError."""
        self._folder.set_earlier_run_aside()
        self._write_config()
        self._write_info(info.RunProgress())
        config, plan = self._setting.config, self._setting.plan
        run = LoggedRun(config.name, tuple(plan.modules), config.to_mapping(), config.to_yaml())
        call_loggers(self._loggers, lambda logger: logger.start(run, self.directory))

    def begin_again(self, whole: bool) -> None:
        """Begin in place of a process that is gone.

        Args:
            whole: all samples come again; else rows of earlier attempts are set aside.

        Raises:
            OSError: the folder cannot be written.
        """
        if not whole:
            self._folder.set_earlier_run_aside()
        for name in (RunFile.METRICS, RunFile.METRICS_BY_RANK, RunFile.EVALUATIONS, RunFile.ERROR):
            (self.directory / name).unlink(missing_ok=True)
        self._write_config()
        self._write_info(info.RunProgress())

    @property
    def note(self) -> dict[str, Any]:
        """What another process needs to write the run in place of this one."""
        return {
            "directory": str(self.directory),
            "config": self._setting.config.to_mapping(),
            "started": self._setting.started.isoformat(),
        }

    def release(self) -> None:
        """Let other runs have the folder; nothing may be written afterwards."""
        self._folder.release()

    def take(self, sample: Sample) -> None:
        """Append the rows of a sample; those that an OSError keeps out are written at the end."""
        if isinstance(sample, StepSample):
            self._take_step(sample)
        elif isinstance(sample, EvaluationSample):
            call_loggers(self._loggers, lambda logger: logger.evaluation(sample.row()))
            self._evaluations.append([sample.row()])
        elif isinstance(sample, ProfileSample):
            self._profiles.take(sample)
        elif isinstance(sample, RankFacts):
            self._facts[sample.rank] = sample
            if len(self._facts) == self._setting.plan.world_size:
                self._write_info(info.RunProgress(completed=self._complete_iterations))

    def finish(
        self,
        samples: Iterable[Sample],
        seconds: float,
        error: Exception | None,
        health: Mapping[str, Any] | None = None,
        restarts: Sequence[Restart] = (),
    ) -> None:
        """Replace the tables by whole ones, and write how the run ended.

        Args:
            samples: all of the run, read several times; no more of them is held than is needed.
            health: of the ranks; None if they have said nothing.
            restarts: attempts that ended early.

        Raises:
            OSError: some file could not be written; the others are. May be called again.
        """
        status = self._status(error)
        progress = info.RunProgress(
            status, seconds, self._complete_iterations, datetime.now().astimezone(), restarts
        )
        parts: list[Callable[[], None]] = [
            self._folder.make_again,
            self._write_config,
            lambda: self._write_error(error if status is info.Status.FAILED else None),
            lambda: self._write_tables(samples),
            lambda: self._write_info(progress),  # with digests of the tables
            lambda: self._write_health(health),
        ]
        try:
            _do_all(parts)
        finally:
            self._folder.release()
            call_loggers(self._loggers, lambda logger: logger.finish(str(status)))
            self._loggers.clear()

    @property
    def _complete_iterations(self) -> int:
        return min(self._completed.values())

    def _status(self, error: Exception | None) -> info.Status:
        if error is not None:
            return info.Status.STOPPED if isinstance(error, RunAborted) else info.Status.FAILED
        planned = self._setting.config.runtime.num_iterations
        return (
            info.Status.COMPLETED if self._complete_iterations >= planned else info.Status.STOPPED
        )

    def _take_step(self, sample: StepSample) -> None:
        self._completed[sample.rank] = sample.iteration + 1
        rows = [reduce_ranks(group) for group in self._iterations.add(sample)]
        for row in rows:
            call_loggers(self._loggers, lambda logger, row=row: logger.step(row))  # type: ignore[misc]
        if sample.measured:
            _do_all(
                [lambda: self._by_rank.append([sample.row()]), lambda: self._steps.append(rows)]
            )

    def _write_tables(self, samples: Iterable[Sample]) -> None:
        tests: list[EvaluationSample] = []
        measured = traced = False
        for sample in samples:
            if isinstance(sample, EvaluationSample):
                tests.append(sample)
            measured |= isinstance(sample, StepSample) and sample.measured
            traced |= isinstance(sample, TraceSample)
        write_evaluations(self.directory, tests)
        if measured:
            ranks = self._setting.plan.world_size
            write_metrics(self.directory, EachTime(lambda: by_iteration(_measured(samples), ranks)))
        if traced:
            write_trace(self.directory / RunFile.TRACE, samples, self._setting.plan)

    def _write_config(self) -> None:
        with whole_file(self.directory / RunFile.CONFIG) as file:
            file.write(without_secrets(self._setting.config.to_yaml()))

    def _write_info(self, progress: info.RunProgress) -> None:
        content = info.run_info(self._setting, progress, list(self._facts.values()))
        if progress.finished is not None:
            content[info.DIGESTS] = self._digests()
        write_json(self.directory / RunFile.INFO, content)

    def _digests(self) -> dict[str, str]:
        table = self.directory / RunFile.METRICS
        return {RunFile.METRICS: digest_of_file(table)} if table.is_file() else {}

    def _write_error(self, error: Exception | None) -> None:
        if error is not None:
            content = info.error_record(error, self._completed)
            write_json(self.directory / RunFile.ERROR, content)

    def _write_health(self, health: Mapping[str, Any] | None) -> None:
        if health is not None:
            write_json(self.directory / RunFile.HEALTH, health)


def _measured(samples: Iterable[Sample]) -> Iterator[StepSample]:
    return (sample for sample in samples if isinstance(sample, StepSample) and sample.measured)


def _do_all(parts: Sequence[Callable[[], None]]) -> None:
    """Do every part, also after one that failed; raise the first OSError at the end."""
    failed: list[OSError] = []
    for part in parts:
        try:
            part()
        except OSError as error:
            failed.append(error)
    if failed:
        raise failed[0]


class ProfileFiles:
    """Writes the files of PyTorch's profiler of one run, put together from what ranks send.

    Their names end in `.pt.trace.json.gz`: TensorBoard's plugin and Perfetto open them.

    Args:
        board: the folder that TensorBoard is given, which gets a copy; None without TensorBoard.
    """

    def __init__(self, directory: Path, board: Path | None = None) -> None:
        self._folder = directory / PROFILES
        self._board = board

    def take(self, sample: ProfileSample) -> None:
        """Append a part; a file gets its name with its last part."""
        self._folder.mkdir(exist_ok=True)
        # The name comes from a rank: it may not lead out of the folder.
        target = self._folder / Path(sample.name).name
        part = target.with_name(f".{target.name}.part")
        with part.open("ab" if sample.part else "wb") as file:
            file.write(sample.content)
        if sample.part + 1 == sample.parts:
            os.replace(part, target)
            if self._board is not None:
                (self._board / PROFILES).mkdir(parents=True, exist_ok=True)
                shutil.copy(target, self._board / PROFILES / target.name)
