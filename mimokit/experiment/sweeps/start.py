"""Starts a sweep: chooses, claims the folder, and leaves out what is complete."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimokit.config import ConfigError, Problem
from mimokit.config.evaluations import Evaluations
from mimokit.experiment.sweeps.choice import (
    Experiment,
    Experiments,
    choose,
    collect,
    refuse_all,
)
from mimokit.experiment.sweeps.folder import (
    SweepFolder,
    completed_info,
    config_content,
    experiments_of,
    recorded,
)
from mimokit.experiment.sweeps.records import ExperimentRecord, ExperimentStatus
from mimokit.experiment.sweeps.runner import Options, SweepRun
from mimokit.experiment.sweeps.seats import InTurn, SideBySide
from mimokit.samples import RunFile

if TYPE_CHECKING:
    from mimokit.cluster import EngineCluster
    from mimokit.engine.data.sources import DataSource

CHANGED = "its config has changed since this sweep began; it runs again"


def sweep(
    cluster: EngineCluster,
    experiments: Experiments | None = None,
    *,
    results_dir: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    strict: bool = False,
    side_by_side: bool = False,
    time_limit: float | None = None,
    data: DataSource | None = None,
    evaluations: Evaluations | None = None,
    trace: bool = False,
) -> SweepRun:
    """Start many experiments on a cluster and return at once.

    One that fails leaves its error.json and the sweep goes on. One whose config is rejected, or
    whose world is larger than the cluster, leaves an error.json with the sentences.

    Args:
        cluster: runs them.
        experiments: a folder with YAML files, a file, a config, several of these, or a mapping of
            names to these; None with `resume` for those that the sweep had.
        results_dir: gets a new folder `run_<timestamp>` with a folder per experiment; by default
            `runs`. It comes before `runtime.metrics_output_dir`.
        resume: the folder `run_<timestamp>` of a sweep to go on with. What is complete there, with
            the same config, is skipped.
        strict: start nothing if an experiment is rejected.
        side_by_side: run experiments at the same time where the cluster has free engines.
        time_limit: seconds per experiment; None for no limit.
        data: as in `train`.
        evaluations: as in `train`.
        trace: as in `train`.

    Raises:
        ConfigError: there are no experiments, all are rejected or (strict) one is, or the folder
            cannot be written.
    """
    if time_limit is not None and not time_limit > 0:
        sentence = f"Sweep: time_limit is {time_limit!r}; it must be more than 0 seconds."
        raise ConfigError([Problem("sweep", "time_limit", time_limit, sentence)])
    chosen = choose(find(experiments, resume), len(cluster))
    if strict or all(one.refusal is not None for one in chosen):
        refuse_all(chosen)
    folder = SweepFolder.new(results_dir) if resume is None else SweepFolder.existing(resume)
    entries = {} if resume is None else recorded(resume)
    own = None if results_dir is not None or len(chosen) > 1 else _own_directory(chosen[0])
    records = tuple(
        _record(one, own or folder.of(one.name, entries), entries.get(one.name)) for one in chosen
    )
    seats = SideBySide(cluster) if side_by_side else InTurn(cluster)
    options = Options(time_limit, data, evaluations, trace)
    return SweepRun(seats, chosen, records, folder, options)


def find(
    experiments: Experiments | None, resume: str | os.PathLike[str] | None
) -> tuple[Experiment, ...]:
    """Return the experiments that are named, or those of a sweep that is resumed.

    A resumed sweep reads the files anew that it came from; where one is gone, its config is that
    of the sweep's own record.

    Raises:
        ConfigError: there are none, or the folder is not that of a sweep.
    """
    if experiments is not None:
        return collect(experiments)
    if resume is None:
        sentence = "Experiments: none are named; give a YAML file, a folder, or a sweep to resume."
        raise ConfigError([Problem("experiment", "path", None, sentence)])
    before = experiments_of(resume)
    sources = dict.fromkeys(one.source for one in before if one.source is not None)
    there = [source for source in sources if Path(source).is_file()]
    now = {one.name: one for one in (collect(there) if there else ())}
    return tuple(now.get(one.name, one) for one in before)


def _own_directory(one: Experiment) -> Path | None:
    """Return the folder that a single experiment names itself."""
    named = None if one.config is None else one.config.runtime.metrics_output_dir
    return None if named is None else Path(named)


def _record(one: Experiment, directory: Path, entry: Mapping[str, Any] | None) -> ExperimentRecord:
    """Return the state in which an experiment begins; `entry` is what an earlier sweep recorded."""
    iterations = None if one.config is None else one.config.runtime.num_iterations
    info = None if entry is None else completed_info(directory)
    same = (
        info is not None and entry is not None and entry.get("config") == config_content(one.config)
    )
    status, message = ExperimentStatus.WAITING, CHANGED if info is not None and not same else ""
    if one.refusal is not None:
        status, message = ExperimentStatus.REFUSED, " ".join(one.sentences)
    elif same:
        status, message = ExperimentStatus.SKIPPED, "complete since an earlier sweep"
    skipped = status is ExperimentStatus.SKIPPED
    return ExperimentRecord(
        name=one.name,
        status=status,
        ranks=one.ranks,
        iteration=(iterations or 0) if skipped else 0,
        iterations=iterations,
        loss=_last_loss(directory) if skipped else None,
        seconds=info.get("seconds") if skipped and info is not None else None,
        message=message,
        directory=directory,
    )


def _last_loss(directory: Path) -> float | None:
    """Return the loss in the last row of metrics.csv."""
    try:
        with (directory / RunFile.METRICS).open(newline="", encoding="utf-8") as file:
            rows: Sequence[Mapping[str, str]] = list(csv.DictReader(file))
        return float(rows[-1]["loss"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
