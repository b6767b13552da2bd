"""Trains one config without a notebook and without a cluster:

torchrun --nproc-per-node 8 -m mimokit.experiment.torchrun configs/digits_colocated.yaml
"""

from __future__ import annotations

import typer

from mimokit.experiment.sweeps.options import SweepRequest
from mimokit.experiment.torchrun.job import run_job


def main(file: str) -> None:
    """Train the layout of a config; rank 0 prints every `log_interval` iterations."""
    raise typer.Exit(run_job(SweepRequest(file)))


if __name__ == "__main__":
    typer.run(main)
