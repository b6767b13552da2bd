"""All benchmarks, one table each: `make bench`. Run them on an otherwise idle machine.

`python -m benchmarks decoding_speed weight_loading` runs those alone.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from benchmarks.table import show

TITLES = {
    "plan_speed": "Planning",
    "weight_plan_speed": "Planning weights",
    "weight_loading": "Loading weights",
    "weight_conversion": "Converting weights",
    "sampling_speed": "Sampling from shards",
    "decoding_speed": "Generating",
    "planner_speed": "The planner in Chromium",
    "tensor_pictures": "Pictures of tensors",
    "frame_balance": "Balancing frames",
    "frame_parallel": "Frame parallel",
    "schedule_speed": "Schedules",
    "proof_speed": "Proofs of plans",
    "prediction_speed": "Predicting",
    "search_speed": "Search",
    "cold_start": "Starting 8 engines",
    "failure_reports": "Failures",
    "idle_ranks": "Ranks that do nothing",
    "training_speed": "Training, 8 ranks",
    "fit_speed": "Fits under strategies",
    "replica_speed": "Replicas of a layout",
    "emulated_links": "Fits on emulated and real links",
    "transfers": "Transfers between modules",
    "colocated_transfers": "Transfers between modules on shared ranks",
    "precision_speed": "Precision, shards, overlap",
    "shared_loop": "The executor on shared ranks against a loop",
    "expert_dispatch": "A layer of experts",
    "pipeline_overhead": "Pipeline executor",
    "megatron_1f1b": "1F1B over modules",
    "recomputation": "Recomputation",
    "gpu_steps": "Layers on a GPU",
    "megatron_loop": "A step against a plain loop of Megatron",
    "context_parallel": "Context parallelism",
    "trace_overhead": "Tracing",
    "drawn_layouts": "Drawn layouts against one process",
    "culprit": "Planted faults",
    "sixteen_ranks": "Layout invariance on 16 ranks",
    "prediction_here": "Prediction on this machine",
    "over_samples": "Steps over samples on this machine",
    "load_runs": "Loading runs",
    "runs_view": "Runs to explore",
    "checkpoints": "Checkpoints",
    "watching_cost": "What watching costs",
    "fuzz": "Files that are almost right",
    "soak": "Files, threads and memory over many runs",
    "monitor_lag": "Watching a run",
}
"""Module with a function `rows` -> title of its table."""


def main(names: Sequence[str]) -> None:
    """Measure and print, all or those that are named."""
    unknown = [name for name in names if name not in TITLES]
    if unknown:
        sys.exit(f"{', '.join(unknown)}: not a benchmark; they are {', '.join(TITLES)}.")
    for name in names or TITLES:
        show(TITLES[name], importlib.import_module(f"benchmarks.{name}").rows())


if __name__ == "__main__":
    main(sys.argv[1:])
