"""A training run that another process has started, on a cluster that outlives it."""

from __future__ import annotations

import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimokit.experiment import on_rank
from mimokit.experiment.prepare import prepared
from mimokit.experiment.restarts import SUPERVISED, RestartedRun, Supervised
from mimokit.experiment.results.folder import Folder, unwritable
from mimokit.experiment.results.info import RunSetting
from mimokit.experiment.results.loggers import make_loggers
from mimokit.experiment.results.writer import RunWriter
from mimokit.experiment.training import TRAINING, TrainingRun
from mimokit.planning import plan_layout

if TYPE_CHECKING:
    from mimokit.cluster import ClusterRun, EngineCluster
    from mimokit.config import ExperimentConfig
    from mimokit.planning.checkpoints import Checkpoint


def reconnect(cluster: EngineCluster) -> TrainingRun:
    """Return the training run of a cluster that stays, with all samples from its start.

    Its folder is written on, where the process that has started it left off; `stop`, `abort`,
    `LiveMonitor` and `restarts` work as in that process: where a rank was lost meanwhile, training
    begins again from its last checkpoint now.

    Args:
        cluster: what `EngineCluster.connect` has returned.

    Raises:
        ValueError: the cluster's last run does not train.
        ConfigError: the folder of the run cannot be written, or is being written.
    """
    run = cluster.last_run
    note: Any = {} if run is None else run.note.get(TRAINING)
    if run is None or not note:
        last = "nothing" if run is None else run.name
        raise ValueError(
            f"the last run of the cluster {cluster.name!r} is {last}, which does not train: "
            "EngineCluster.last_run has it"
        )
    config = _config_of(note["config"])
    plan = plan_layout(config)
    directory = Path(note["directory"])
    folder = Folder.claim(directory)
    setting = RunSetting(config, plan, datetime.fromisoformat(note["started"]))
    writer = RunWriter(folder, setting, make_loggers(config.runtime))
    try:
        writer.begin_again()
    except OSError as error:
        writer.release()
        raise unwritable(directory, error) from None
    going_on = run if SUPERVISED not in run.note else _supervised(cluster, run, plan.world_size)
    return TrainingRun(going_on, config, plan, directory, writer)


def _supervised(cluster: EngineCluster, run: ClusterRun, ranks: int) -> RestartedRun:
    """Go on to supervise a run in place of the process that is gone."""

    def begin(checkpoint: Checkpoint | None) -> ClusterRun:
        here = None if checkpoint is None else str(checkpoint.directory.absolute())
        return cluster.submit(on_rank.train_again, run.first_call(), here, world_size=ranks)

    supervised = RestartedRun(run, begin, Supervised.of_json(run.note[SUPERVISED]))
    supervised.remember({TRAINING: run.note[TRAINING]})
    return supervised


def _config_of(text: str) -> ExperimentConfig:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(text, encoding="utf-8")
        return prepared(str(file))
