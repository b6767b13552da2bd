"""Writes the results folder of a run; nothing else does. `mimokit.analysis.folder` reads it.

    config.yaml            the finalized config
    experiment_info.json   layout, duration, versions
    metrics.csv            a row per iteration
    metrics_by_rank.csv    a row per iteration and rank
    evaluations.csv        a row per test on held-out samples
    trace.json             of a traced run
    error.json             of a run that failed

Each file appears whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mimokit.analysis import write_trace
from mimokit.config import ExperimentConfig
from mimokit.planning.types import LayoutPlan
from mimokit.samples import (
    EvaluationSample,
    RunFile,
    Sample,
    StepSample,
    TraceSample,
    whole_file,
    write_evaluations,
    write_metrics,
)

_VERSIONS_OF = ("mimokit", "torch", "megatron-core", "ipyparallel")


def new_folder(name: str) -> Path:
    """Return the results folder of a run for which the user names none."""
    return Path("runs") / f"run_{datetime.now():%Y%m%d_%H%M%S}" / name


def write_results(
    directory: Path,
    config: ExperimentConfig,
    plan: LayoutPlan,
    samples: Sequence[Sample],
    seconds: float,
) -> None:
    """Write the results of a run, complete or up to its failure.

    Args:
        directory: made if missing.
        config: finalized.
        plan: of its layout.
        samples: of all ranks, in any order.
        seconds: duration of the run.
    """
    directory.mkdir(parents=True, exist_ok=True)
    steps = [one for one in samples if isinstance(one, StepSample) and one.measured]
    if steps:
        write_metrics(directory, steps)
    write_evaluations(directory, [one for one in samples if isinstance(one, EvaluationSample)])
    if any(isinstance(one, TraceSample) for one in samples):
        write_trace(directory / RunFile.TRACE, samples, plan)
    with whole_file(directory / RunFile.CONFIG) as file:
        file.write(config.to_yaml())
    _write_json(directory / RunFile.INFO, _info(config, plan, seconds))


def write_error(directory: Path, error: Exception) -> None:
    """Write the error that ended a run, into an existing folder."""
    _write_json(directory / RunFile.ERROR, {"type": type(error).__name__, "message": str(error)})


def _info(config: ExperimentConfig, plan: LayoutPlan, seconds: float) -> dict[str, Any]:
    return {
        "name": config.name,
        "deployment_mode": plan.deployment_mode,
        "world_size": plan.world_size,
        "finished": datetime.now().astimezone().isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "versions": {name: version(name) for name in _VERSIONS_OF},
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with whole_file(path) as file:
        file.write(json.dumps(content, indent=2) + "\n")
