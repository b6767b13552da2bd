"""A training run that another process has started, on a cluster that outlives it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimokit.config_files import config_from_mapping
from mimokit.experiment.prepare import finalized_copy
from mimokit.experiment.restarts import BEGUN_AGAIN
from mimokit.experiment.results.folder import Folder, unwritable
from mimokit.experiment.results.info import RunSetting
from mimokit.experiment.results.loggers import make_loggers
from mimokit.experiment.results.writer import RunWriter
from mimokit.experiment.training import TrainingRun
from mimokit.planning import plan_layout

if TYPE_CHECKING:
    from mimokit.cluster import EngineCluster


def reconnect(cluster: EngineCluster) -> TrainingRun:
    """Return the training run of a cluster that stays, with all samples from its start.

    Its folder is written on, where the process that has started it left off; `stop`, `abort` and
    `LiveMonitor` work as in that process. A run with `restarts` begins again only there: of one
    that had done so, samples are those since, and earlier rows are set aside in the folder.

    Args:
        cluster: what `EngineCluster.connect` has returned.

    Raises:
        ValueError: the cluster's last run does not train.
        ConfigError: the folder of the run cannot be written, or is being written.
    """
    run = cluster.last_run
    note: Any = {} if run is None else run.note
    if run is None or not note:
        last = "nothing" if run is None else run.name
        raise ValueError(
            f"the last run of the cluster {cluster.name!r} is {last}, which does not train: "
            "EngineCluster.last_run has it"
        )
    config = finalized_copy(config_from_mapping(note["config"]))
    plan = plan_layout(config)
    directory = Path(note["directory"])
    folder = Folder.claim(directory)
    started = datetime.fromisoformat(note["started"])
    setting = RunSetting(config, plan, started, server=cluster.server_pid)
    writer = RunWriter(folder, setting, make_loggers(config.runtime))
    try:
        writer.begin_again(whole=BEGUN_AGAIN not in note)
    except OSError as error:
        writer.release()
        raise unwritable(directory, error) from None
    return TrainingRun(run, config, plan, directory, writer)
