"""Starts a sweep on a cluster."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mimokit.config.runtime import Evaluations
from mimokit.experiment.sweeps.choice import Experiments, choose, refuse_all
from mimokit.experiment.sweeps.prepared import find, prepare_sweep
from mimokit.experiment.sweeps.runner import Options, SweepRun
from mimokit.experiment.sweeps.seats import InTurn, NoSeats, Seats, SideBySide

if TYPE_CHECKING:
    from mimokit.cluster import EngineCluster
    from mimokit.engine.data.sources import DataSource


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
    whose world is larger than the cluster, leaves an error.json with the sentences, also if all of
    several are rejected.

    Args:
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
    options = Options(time_limit, data, evaluations, trace)
    prepared = prepare_sweep(
        choose(find(experiments, resume), len(cluster)),
        results_dir=results_dir,
        resume=resume,
        strict=strict,
    )
    if prepared.all_refused:
        SweepRun(NoSeats(), prepared, options).result()
        refuse_all(prepared.chosen)
    seats: Seats = SideBySide(cluster) if side_by_side else InTurn(cluster)
    return SweepRun(seats, prepared, options)
