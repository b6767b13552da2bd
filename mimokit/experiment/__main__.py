"""Runs experiments on the ranks of torchrun:

python -m torch.distributed.run --nproc-per-node 8 -m mimokit.experiment
--experiments-dir configs/ablations --results-dir results
"""

from __future__ import annotations

from typing import Annotated

import typer

from mimokit.experiment.sweeps.options import (
    ConfigOption,
    Data,
    ExperimentsDir,
    FromStep,
    ResultsDir,
    Resume,
    Strict,
    SweepRequest,
    TimeLimit,
    Trace,
    named_experiments,
)
from mimokit.experiment.torchrun import run_job


def main(
    file: Annotated[str | None, typer.Argument(help="A YAML config.")] = None,
    config: ConfigOption = None,
    experiments_dir: ExperimentsDir = None,
    results_dir: ResultsDir = None,
    resume: Resume = None,
    from_step: FromStep = None,
    strict: Strict = False,
    time_limit: TimeLimit = None,
    trace: Trace = False,
    data: Data = None,
) -> None:
    """Train one config, or all in a folder, on the ranks of this job."""
    experiments = named_experiments(file, config, experiments_dir, resume)
    request = SweepRequest(
        experiments,
        results_dir,
        resume,
        strict,
        time_limit,
        trace,
        source=data,
        from_step=from_step,
    )
    raise typer.Exit(run_job(request))


if __name__ == "__main__":
    typer.run(main)
