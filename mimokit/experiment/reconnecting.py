"""A training run that another process has started, on a cluster that outlives it."""

from __future__ import annotations

import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimokit.experiment.prepare import prepared
from mimokit.experiment.results.folder import Folder, unwritable
from mimokit.experiment.results.info import RunSetting
from mimokit.experiment.results.loggers import make_loggers
from mimokit.experiment.results.writer import RunWriter
from mimokit.experiment.training import TRAINING, TrainingRun
from mimokit.planning import plan_layout

if TYPE_CHECKING:
    from mimokit.cluster import EngineCluster
    from mimokit.config import ExperimentConfig


def reconnect(cluster: EngineCluster) -> TrainingRun:
    """Return the training run of a cluster that stays, with all samples from its start.

    Its folder is written on, where the process that has started it left off; `stop`, `abort` and
    `LiveMonitor` work as in that process.

    Args:
        cluster: what `EngineCluster.connect` has returned.

    Raises:
        ValueError: the cluster's last run does not train, or has begun again from a checkpoint
            after it lost a rank.
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
    if note["from_step"] is not None:
        raise ValueError(
            f"the run of the cluster {cluster.name!r} has begun again at step {note['from_step']}, "
            f"and the samples before are gone with the process that had them: its tables in "
            f"{note['directory']} stay as they are, and EngineCluster.last_run has what came later"
        )
    config = _config_of(note["config"])
    plan = plan_layout(config)
    directory = Path(note["directory"])
    folder = Folder.claim(directory)
    began = datetime.now().astimezone().timestamp() - run.elapsed
    setting = RunSetting(config, plan, datetime.fromtimestamp(began).astimezone())
    writer = RunWriter(folder, setting, make_loggers(config.runtime))
    try:
        writer.begin_again()
    except OSError as error:
        writer.release()
        raise unwritable(directory, error) from None
    return TrainingRun(run, config, plan, directory, writer)


def _config_of(text: str) -> ExperimentConfig:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(text, encoding="utf-8")
        return prepared(str(file))
