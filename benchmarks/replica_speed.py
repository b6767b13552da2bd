"""Steps per second of 4 replicas of one rank against data parallelism over 4 ranks.

Both average the gradients of all ranks in each step, SimpleReduce between replicas and Megatron's
DDP within a layout, over as many samples per rank. Runs alternate on the same engines. The CPU time
of a step depends less on other work of the machine than its time by the clock.
"""

from __future__ import annotations

import statistics
from typing import Any

import mimokit
from benchmarks.training_speed import ROOT
from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.config_files import config_from_mapping, load_experiment_config
from mimokit.planning.types import LayoutPlan
from mimokit.samples import Sample, to_wire

RANKS = 4
SAMPLES = 16
"""Of a rank and step."""
STEPS, WARMUP, PAIRS = 40, 5, 7
LONGEST = 300.0
"""Seconds that a run may take before the benchmark fails."""


def config_of(data_parallel: int) -> ExperimentConfig:
    """Return the digits model in a layout of some ranks, in as many replicas as fill all."""
    config = load_experiment_config(ROOT / "configs" / "digits_homogeneous.yaml")
    mapping = config.to_mapping()
    sizes = {"tensor_parallel": 1, "data_parallel": data_parallel}
    for module in mapping["model"]["module_parallelisms"].values():
        module.update(sizes)
    mapping["data"].update(base_batch_size=SAMPLES, num_microbatches=1)
    mapping["runtime"].update(num_iterations=STEPS)
    if data_parallel < RANKS:
        mapping["strategy"] = {"name": "simple_reduce", "replicas": RANKS // data_parallel}
    return config_from_mapping(mapping)


def seconds_per_step(plan: LayoutPlan, config: ExperimentConfig) -> tuple[float, float]:
    """Return seconds and CPU seconds of a step on this rank, samples included."""
    from mimokit import cluster
    from mimokit.engine.calibration import median_step_seconds
    from mimokit.engine.run_of_rank import in_replica

    def emit(sample: Sample) -> None:
        cluster.emit(to_wire(sample))

    with in_replica(plan, config) as run:
        return median_step_seconds(run, emit, WARMUP)


def rows() -> list[dict[str, Any]]:
    """Return the figures of the table."""
    configs = [config_of(1), config_of(RANKS)]
    turns: list[list[tuple[float, float]]] = []
    with EngineCluster(RANKS, progress=False) as cluster:
        for _ in range(PAIRS):
            turns.append([])
            for config in configs:
                run = cluster.submit(
                    seconds_per_step, mimokit.plan(config), config, world_size=RANKS
                )
                seconds, cpu = zip(*run.result(LONGEST), strict=True)
                turns[-1].append((max(seconds), sum(cpu)))
    wall, computing = ([one[1][kind] / one[0][kind] for one in turns] for kind in (0, 1))
    found = statistics.median(wall)
    return [
        {
            "name": f"4 replicas over DP 4, steps/s ({min(wall):.2f} to {max(wall):.2f})",
            "measured": found,
            "target": "at least 0.9",
            "unit": "times",
            "ok": found >= 0.9,
        },
        {
            "name": f"the same per CPU second ({min(computing):.2f} to {max(computing):.2f})",
            "measured": statistics.median(computing),
            "target": None,
            "unit": "times",
            "ok": True,
        },
        {
            "name": "step of 4 replicas",
            "measured": 1e3 * statistics.median(one[0][0] for one in turns),
            "target": None,
            "unit": "ms",
            "ok": True,
        },
    ]


if __name__ == "__main__":
    from benchmarks.table import show

    show("Replicas of a layout", rows())
