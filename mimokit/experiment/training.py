"""A training run on a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd

from mimokit.analysis import samples_to_evaluations, samples_to_steps
from mimokit.cluster import ClusterRun, RankDied
from mimokit.cluster.symptoms import NO_MEMORY
from mimokit.config import ExperimentConfig, Problem
from mimokit.config.checked_code import checked_code
from mimokit.config.runtime import CheckpointConfig, Evaluations
from mimokit.config.user_code import ForwardStep, OwnLoss, OwnModule
from mimokit.experiment import on_rank
from mimokit.experiment.background import BackgroundRun
from mimokit.experiment.checkpoints import check_restarts, resumed
from mimokit.experiment.health.report import HealthRecord, RunHealth
from mimokit.experiment.prepare import Config, check_room, finalized_copy, with_hosts
from mimokit.experiment.restarts import Restart, RestartedRun, RunOnRanks, Supervised, damage_in
from mimokit.experiment.results.folder import Folder, new_run_folder, unwritable
from mimokit.experiment.results.info import RunSetting
from mimokit.experiment.results.loggers import make_loggers
from mimokit.experiment.results.writer import RunWriter
from mimokit.experiment.trainable import check_trainable
from mimokit.planning import plan_layout
from mimokit.planning.checkpoints import Checkpoint, DamagedCheckpointError, read_checkpoint
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.peak import peak_of_hardware
from mimokit.result_files import CHECKPOINTS, EachTime
from mimokit.samples import AnswersSample, HealthSample, ProfileSample, RankFacts, Sample, from_wire

if TYPE_CHECKING:
    from mimokit.cluster import EngineCluster
    from mimokit.cluster.job import Job
    from mimokit.engine.data.sources import DataSource

_OF_NO_TABLE = (RankFacts, ProfileSample, HealthSample, AnswersSample)
"""Samples that are for the run's folder, its health or its answers."""


@dataclass(frozen=True)
class TrainingResult:
    """The tables of a run, which of a long one take memory from when they are asked for.

    Attributes:
        samples: all that ranks have sent, read from a file; not held.
        directory: the run's folder: config.yaml, experiment_info.json, metrics.csv,
            metrics_by_rank.csv, evaluations.csv, health.json, and trace.json of a traced run.
    """

    directory: Path
    samples: Iterable[Sample] = field(repr=False)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """A row per rank and iteration, sorted by iteration and rank."""
        return samples_to_steps(self.samples)

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """A row per test on held-out samples, sorted by iteration."""
        return samples_to_evaluations(self.samples)


TrainingCluster: TypeAlias = "EngineCluster | Job"
"""Ranks to train on: a cluster, a part of one, or a job of torchrun."""


class TrainingRun(BackgroundRun[TrainingResult]):
    """A training run in the background."""

    def __init__(
        self,
        run: RunOnRanks,
        config: ExperimentConfig,
        plan: LayoutPlan,
        directory: Path,
        writer: RunWriter,
        record: HealthRecord | None = None,
    ) -> None:
        self.config = config
        self.plan = plan
        self._writer = writer
        self._record_of_health = record or HealthRecord(config, plan)
        self._answers: Mapping[int, tuple[int, ...]] = {}
        super().__init__(run, directory)

    @property
    def restarts(self) -> tuple[Restart, ...]:
        """The attempts that ended early, and from where the run went on."""
        return self._run.restarts if isinstance(self._run, RestartedRun) else ()

    def _sample_of(self, message: Mapping[str, Any]) -> Sample | None:
        sample = from_wire(message)
        return None if isinstance(sample, _OF_NO_TABLE) else sample

    def _record(self, message: Mapping[str, Any]) -> None:
        sample = from_wire(message)
        if isinstance(sample, AnswersSample):
            self._answers = {number: tuple(tokens) for number, tokens in sample.answers}
            return
        self._record_of_health.take(sample)
        self._writer.take(sample)

    @property
    def answers(self) -> Mapping[int, tuple[int, ...]]:
        """What the model answered when it was last tested, to a few held-out samples.

        Number of the sample in the test set -> tokens. `mimokit_widgets.show_strips` shows them.
        """
        return dict(self._answers)

    def health(self, hardware: str | os.PathLike[str] | None = None) -> RunHealth:
        """Return the health of all ranks, as far as they have said.

        After the first iteration and after the last they say what they hold, their random states
        and how many collectives they had; memory and times are those of the last iterations.
        `LiveMonitor` shows what is wrong.

        Args:
            hardware: a hardware file or name, such as what `calibrate` has written, that the time
                of a small all-reduce is compared with; by default `runtime.hardware`.

        Raises:
            ConfigError: the hardware is unknown.
        """
        return self._record_of_health.health(hardware)

    def _reason(self, error: Exception) -> Exception:
        sentence = damage_in(error)
        if sentence is None:
            return super()._reason(error)
        where = self.config.runtime.resume_from
        return DamagedCheckpointError([Problem("runtime", "resume_from", where, sentence)])

    def _complete(self, error: Exception | None) -> None:
        if isinstance(error, RankDied) and error.signal == NO_MEMORY:
            self._record_of_health.note_held(error)
        health = self._record_of_health.health()
        known = health.ranks or health.lost
        of_ranks = health.for_file() if known else None
        self._writer.finish(self._each_time(), self.elapsed, error, of_ranks, self.restarts)

    def _collect(self) -> TrainingResult:
        return TrainingResult(self.directory, self._each_time())

    def _each_time(self) -> Iterable[Sample]:
        return EachTime(self.each_sample)


def train(
    cluster: TrainingCluster,
    config: Config,
    data: DataSource | None = None,
    *,
    evaluations: Evaluations | None = None,
    directory: str | Path | None = None,
    trace: bool = False,
    modules: Mapping[str, OwnModule] | None = None,
    loss_func: OwnLoss | None = None,
    forward_step: ForwardStep | None = None,
    checkpoints: CheckpointConfig | int | None = None,
    resume: str | os.PathLike[str] | None = None,
    from_step: int | None = None,
    restarts: int = 0,
) -> TrainingRun:
    """Start training a layout and return at once.

    Args:
        cluster: with at least as many engines as the layout has ranks.
        config: a config, or the path of one.
        data: makes the training and test data on every rank; by default strips of digits if the
            model can read them, else noise.
        directory: for the results; by default `runtime.metrics_output_dir`, else a new folder
            under `runs/`. The files of an earlier run in it are moved into its `earlier/`.
        trace: time every step of the schedule on all ranks, into `trace.json`; opens in Perfetto,
            and `mimokit.analysis.read_trace` reads it.
        modules: module -> what builds it in place of mimokit, see docs/own_modules.md: a function
            of (architecture, process groups) that returns a module, or a Megatron `ModuleSpec`.
        loss_func: a function of (loss mask, loss of every token), both [samples, tokens], that
            returns the sum of the losses of the language model and the number of their tokens.
        forward_step: a function of (data iterator, model) that returns the output of one
            micro-batch and a function that computes the loss of it; in place of `loss_func`.
        checkpoints: in place of `runtime.checkpoint`; a number is its interval.
        resume: what to go on from: a results folder, its folder of checkpoints, or a checkpoint;
            of a folder of runs the newest with a checkpoint of this model and strategy.
            The layout may be another one; model and data are the same.
        from_step: of several checkpoints, the one after so many steps; by default the newest.
        restarts: how often training begins again, from the last checkpoint, after a rank died,
            froze or raised. It ends if the same step fails twice. It needs checkpoints.

    Raises:
        ConfigError: the config is wrong or cannot run, the folder cannot be written, or there
            is no checkpoint to resume.
        ValueError: the cluster has too few engines.
    """
    ready = _with_checkpoints(finalized_copy(config), checkpoints, resume, from_step, modules or ())
    check_trainable(ready, modules or ())
    check_restarts(ready, restarts)
    check_room(ready, len(cluster))
    code = checked_code(ready, modules, loss_func, forward_step, data)
    plan = with_hosts(cluster, plan_layout(ready))
    loggers = make_loggers(ready.runtime)
    peak = peak_of_hardware(ready.runtime, plan.world_size)
    named = Path(directory or ready.runtime.metrics_output_dir or new_run_folder(ready.name))
    folder = Folder.claim(named)

    def begin(checkpoint: Checkpoint | None) -> ClusterRun:
        given = remote if checkpoint is None else _going_on(remote, checkpoint)
        return cluster.submit(
            on_rank.train_rank,
            plan,
            given,
            evaluations,
            trace,
            peak,
            code,
            world_size=plan.world_size,
        )

    try:
        remote = _for_ranks(ready, folder)
        writer = RunWriter(folder, RunSetting(ready, plan, server=_server_of(cluster)), loggers)
        run = _supervised(begin, remote, restarts) if restarts else begin(None)
        run.remember(writer.note)
    except BaseException:
        folder.release()
        raise
    record = HealthRecord(ready, plan, code, own_data=bool(data or ready.data.source))
    return TrainingRun(run, ready, plan, named, _begun(writer, run, named), record)


def _with_checkpoints(
    config: ExperimentConfig,
    checkpoints: CheckpointConfig | int | None,
    resume: str | os.PathLike[str] | None,
    from_step: int | None,
    own: Collection[str],
) -> ExperimentConfig:
    if isinstance(checkpoints, int):
        checkpoints = CheckpointConfig(interval=checkpoints)
    if checkpoints is not None:
        runtime = config.runtime.model_copy(update={"checkpoint": checkpoints})
        config = config.model_copy(update={"runtime": runtime})
    return config if resume is None else resumed(config, resume, from_step, own)


def _server_of(cluster: EngineCluster | Job) -> int | None:
    """Return the server of a cluster on this machine; a job ends with this process."""
    server: int | None = getattr(cluster, "server_pid", None)
    return server


def _for_ranks(config: ExperimentConfig, folder: Folder) -> ExperimentConfig:
    """Return what ranks need; checkpoints of an earlier run in the folder are moved aside.

    This process writes the tables from the samples of the ranks: on a cluster of many hosts the
    ranks may not reach its folder.
    """
    changed: dict[str, object] = {"metrics_output_dir": None}
    checkpoint = config.runtime.checkpoint
    if checkpoint is not None:
        directory = checkpoint.directory
        if directory is None:
            folder.set_earlier_checkpoints_aside(config.runtime.resume_from)
        where = Path(directory or folder.path / CHECKPOINTS).absolute()
        changed["checkpoint"] = checkpoint.model_copy(update={"directory": str(where)})
    return config.model_copy(update={"runtime": config.runtime.model_copy(update=changed)})


def _going_on(config: ExperimentConfig, checkpoint: Checkpoint) -> ExperimentConfig:
    here = str(checkpoint.directory.absolute())
    runtime = config.runtime.model_copy(update={"resume_from": here})
    return config.model_copy(update={"runtime": runtime})


def _supervised(
    begin: Callable[[Checkpoint | None], ClusterRun], config: ExperimentConfig, restarts: int
) -> RestartedRun:
    checkpoint, begun = config.runtime.checkpoint, config.runtime.resume_from
    assert checkpoint is not None  # else the run is rejected
    assert checkpoint.directory is not None
    first = 0 if begun is None else read_checkpoint(begun).step
    return RestartedRun(begin(None), begin, Supervised(checkpoint.directory, restarts, first))


def _begun(writer: RunWriter, run: RunOnRanks, directory: Path) -> RunWriter:
    try:
        writer.begin()
    except OSError as error:
        run.abort()
        writer.release()
        raise unwritable(directory, error) from None
    return writer
