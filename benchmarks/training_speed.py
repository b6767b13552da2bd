"""Steps per second through the cluster, monitored and streamed, against plain torchrun.

Both train the same layout on the same ranks of this machine; runs alternate, so that a machine
whose speed drifts slows both. `python -m benchmarks.training_speed [--pairs N]`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.config_files import load_experiment_config
from mimokit.experiment import train
from mimokit.samples import StepSample

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "digits_colocated.yaml"
ITERATIONS = 60
WARMUP = 10
TARGET = 0.97


def _config(monitored: bool) -> ExperimentConfig:
    config = load_experiment_config(CONFIG)
    runtime = config.runtime.model_copy(
        update={
            "num_iterations": ITERATIONS,
            "log_interval": 1,
            "enable_performance_monitoring": monitored,
        }
    )
    return config.model_copy(update={"runtime": runtime})


def steps_per_second(times: list[float]) -> float:
    """Return the rate between the end of the last warm-up step and the end of the last step."""
    return (len(times) - 1 - WARMUP) / (times[-1] - times[WARMUP])


def through_cluster(cluster: EngineCluster, directory: Path) -> float:
    """Train with monitor and streaming on."""
    run = train(cluster, _config(monitored=True), directory=directory)
    run.result()
    times = [s.time for s in run.samples if isinstance(s, StepSample) and s.rank == 0]
    return steps_per_second(times)


def under_torchrun(directory: Path) -> float:
    """Train the same without monitor and without streaming."""
    config = _config(monitored=False).save(directory / "config.yaml")
    output = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "8"),
            *("--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
            *("-m", "benchmarks.torchrun_steps", str(config)),
        ],
        check=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    ).stdout
    return steps_per_second(json.loads(output.splitlines()[-1]))


def rows(pairs: int = 5, directory: Path | None = None) -> list[dict[str, Any]]:
    """Return the figures of the table."""
    folder = directory or ROOT / "build" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    measured = []
    with EngineCluster(n=8) as cluster:
        for _ in range(pairs):
            measured.append((through_cluster(cluster, folder / "run"), under_torchrun(folder)))
    ratios = [ours / theirs for ours, theirs in measured]
    ratio = statistics.median(ratios)
    return [
        {
            "name": "steps/s through the cluster (monitored, streamed)",
            "measured": statistics.median(ours for ours, _ in measured),
            "target": None,
            "unit": "steps/s",
            "ok": True,
        },
        {
            "name": "steps/s under torchrun (neither)",
            "measured": statistics.median(theirs for _, theirs in measured),
            "target": None,
            "unit": "steps/s",
            "ok": True,
        },
        {
            "name": f"ratio, median of {pairs} pairs ({min(ratios):.2f} to {max(ratios):.2f})",
            "measured": ratio,
            "target": f"at least {TARGET}",
            "unit": "",
            "ok": ratio >= TARGET,
        },
    ]


def main(pairs: Annotated[int, typer.Option(min=1)] = 5) -> None:
    """Print the table."""
    from benchmarks.table import show

    show("Training speed, 8 ranks", rows(pairs))


if __name__ == "__main__":
    typer.run(main)
