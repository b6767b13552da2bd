"""Folders of runs with a planted cause, made without a cluster.

Every rank works for the times that are given; then it waits for the slowest one, and a collective,
a message and the report follow. So the columns are consistent, as those of a real run are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import mimokit
from mimokit.planning.schedule import simulate

if TYPE_CHECKING:
    import pandas as pd

CONFIGS = Path(__file__).parents[2] / "configs"
TOKENS_PER_STEP, SAMPLES_PER_STEP = 1152, 64


@dataclass(frozen=True)
class Planted:
    """What a made-up run does; times are seconds of a step.

    Attributes:
        mode: the config `digits_<mode>.yaml` is its layout.
        forward: by module; backward is twice as long.
        noise: relative standard deviation of the work of a rank, drawn for every step.
        common: relative standard deviation of what all ranks share from step to step.
        memory_of: how much of the noise of a step is in the next one, between 0 and 1.
        slow: rank -> factor of its forward and backward.
        slow_data: rank -> seconds that it loads longer.
        late: (share of steps, factor) of steps in which everything takes longer.
        drift: relative change of all times from the first to the last step.
        stages: stage of a pipeline -> factor of its work.
    """

    mode: str = "colocated"
    iterations: int = 60
    warmup: int = 5
    seed: int = 0
    forward: Mapping[str, float] = field(
        default_factory=lambda: {"images": 0.010, "language_module": 0.030}
    )
    data: float = 0.002
    optimizer: float = 0.004
    collective: float = 0.004
    point_to_point: float = 0.0
    rest: float = 0.003
    noise: float = 0.01
    common: float = 0.01
    memory_of: float = 0.0
    slow: Mapping[int, float] = field(default_factory=dict)
    slow_data: Mapping[int, float] = field(default_factory=dict)
    late: tuple[float, float] = (0.0, 1.0)
    drift: float = 0.0
    stages: Mapping[int, float] = field(default_factory=dict)


def write_run(folder: Path, planted: Planted, **info: Any) -> Path:
    from mimokit.analysis import per_iteration

    folder.mkdir(parents=True)
    config = mimokit.load_experiment_config(CONFIGS / f"digits_{planted.mode}.yaml")
    config.runtime.warmup_iterations = planted.warmup
    config.name = folder.name
    plan = mimokit.plan(config)
    steps = _steps(planted, plan)
    steps.to_csv(folder / "metrics_by_rank.csv", index=False, lineterminator="\r\n")
    per_iteration(steps).to_csv(folder / "metrics.csv", index=False, lineterminator="\r\n")
    config.save(folder / "config.yaml")
    content = {
        "name": folder.name,
        "status": "completed",
        "deployment_mode": plan.deployment_mode,
        "world_size": plan.world_size,
        "started": "2026-01-02T03:04:05+00:00",
        "finished": "2026-01-02T03:05:05+00:00",
        "seconds": float(steps.groupby("iteration")["total_time"].max().sum()),
        "seed": planted.seed,
        "iterations": {"planned": planted.iterations, "completed": planted.iterations},
        "warmup_iterations": planted.warmup,
        "modules": {
            name: {
                "ranks": list(ranks.ranks),
                "tensor_parallel": ranks.tensor_parallel,
                "pipeline_parallel": ranks.pipeline_parallel,
                "context_parallel": 1,
                "expert_parallel": 1,
                "data_parallel": ranks.data_parallel,
                "parameters": 1000,
            }
            for name, ranks in plan.modules.items()
        },
        "samples_per_step": SAMPLES_PER_STEP,
        "tokens_per_step": TOKENS_PER_STEP,
        "git": {"revision": "0123abc", "dirty": False},
        "versions": {"mimokit": "0.1.0", "torch": "2.13.0"},
        "hosts": ["here"],
        "hardware": {
            "cpu": "made up", "cores": 64, "memory_bytes": 64 * 2**30, "accelerators": [],
        },
        "peak_flops_per_sec": None,
        **info,
    }  # fmt: skip
    (folder / "experiment_info.json").write_text(json.dumps(content))
    return folder


def _steps(planted: Planted, plan: Any) -> pd.DataFrame:
    import pandas as pd

    rng = np.random.default_rng(planted.seed)
    factors = _factors(planted, rng)
    rows = []
    for iteration, common in enumerate(factors):
        step = {rank: _work(planted, plan, rank, common, rng) for rank in range(plan.world_size)}
        span = _span(planted, plan, step)
        for rank, work in step.items():
            rows.append(_row(planted, iteration, rank, work, span))
    return pd.DataFrame(rows)


def _factors(planted: Planted, rng: np.random.Generator) -> np.ndarray:
    count, rho = planted.iterations, planted.memory_of
    noise = np.zeros(count)
    for step, fresh in enumerate(rng.normal(0, 1, count)):
        noise[step] = fresh if step == 0 else rho * noise[step - 1] + (1 - rho**2) ** 0.5 * fresh
    factors = np.exp(planted.common * noise) * (1 + planted.drift * np.linspace(0, 1, count))
    factors[: planted.warmup] *= 3.0
    share, factor = planted.late
    factors[rng.random(count) < share] *= factor
    return factors


def _work(
    planted: Planted, plan: Any, rank: int, common: float, rng: np.random.Generator
) -> dict[str, float]:
    factor = common * planted.slow.get(rank, 1.0) * max(0.1, 1 + planted.noise * rng.normal())
    if plan.pipeline is not None:
        factor *= planted.stages.get(plan.pipeline.stages_of(rank)[0].index, 1.0)
    work = {}
    for name, ranks in plan.modules.items():
        if rank in ranks.ranks:
            work[f"{name}_forward_time"] = planted.forward[name] * factor
            work[f"{name}_backward_time"] = 2 * planted.forward[name] * factor
    work["data_time"] = planted.data * common + planted.slow_data.get(rank, 0.0)
    work["optimizer_time"] = planted.optimizer * common
    return work


def _span(planted: Planted, plan: Any, step: Mapping[int, Mapping[str, float]]) -> float:
    longest = max(sum(work.values()) for work in step.values())
    if plan.pipeline is None:
        return longest
    forward, backward = [], []
    for stage, ranks in zip(plan.pipeline.graph.stages, plan.pipeline.ranks, strict=True):
        own = [step[rank] for rank in ranks]
        loading = max(work["data_time"] for work in own)
        forward.append(max(work[f"{stage.module}_forward_time"] for work in own) + loading)
        backward.append(max(work[f"{stage.module}_backward_time"] for work in own))
    count = plan.pipeline.schedule.num_microbatches
    each = [np.array(times) / count for times in (forward, backward)]
    span = simulate(plan.pipeline.schedule, *each).pipeline_makespan
    return span + max(work["optimizer_time"] for work in step.values())


def _row(
    planted: Planted, iteration: int, rank: int, work: Mapping[str, float], span: float
) -> dict[str, float]:
    waiting, apart = span - sum(work.values()), planted.mode == "heterogeneous"
    communication = planted.collective + planted.point_to_point + waiting
    total = span + planted.collective + planted.point_to_point + planted.rest
    forward = sum(value for name, value in work.items() if name.endswith("_forward_time"))
    backward = sum(value for name, value in work.items() if name.endswith("_backward_time"))
    return {
        "iteration": iteration,
        "total_time": total,
        "forward_time": forward,
        "backward_time": backward,
        "optimizer_time": work["optimizer_time"],
        "tokens_per_sec": TOKENS_PER_STEP / total,
        "samples_per_sec": SAMPLES_PER_STEP / total,
        "memory_allocated": 400_000_000 + 1_000_000 * rank,
        "memory_reserved": 500_000_000,
        "loss": 2.5 * 0.99**iteration,
        "communication_time": communication,
        "data_time": work["data_time"],
        "tokens_per_sec_per_rank": TOKENS_PER_STEP / total / 8,
        "samples_per_sec_per_rank": SAMPLES_PER_STEP / total / 8,
        "grad_norm": 1.0,
        "report_time": planted.rest / 2,
        "time": 1_767_323_045.0 + iteration,
        "rank": rank,
        "collective_time": planted.collective + (0.0 if apart else waiting),
        "point_to_point_time": planted.point_to_point + (waiting if apart else 0.0),
        "waiting_time": waiting,
        "memory_peak": 450_000_000 + 1_000_000 * rank,
        "validation_loss": float("nan"),
        "flops_per_sec": 1e9 / total,
        "model_flop_utilisation": float("nan"),
        "warmup": float(iteration < planted.warmup),
        **{name: value for name, value in work.items() if name not in ("data_time",
                                                                       "optimizer_time")},
    }  # fmt: skip


def write_trace_of_forwards(file: Path) -> None:
    step = {"step": "forward", "iteration": 3, "module": "images", "microbatch": 0}
    events = [
        {"ph": "X", "name": "forward images", "pid": rank, "tid": 0, "ts": 0.0, "dur": 5e3,
         "args": step}
        for rank in range(8)
    ]  # fmt: skip
    _write_events(file, events)


def write_trace_of_steps(file: Path, slow: Mapping[int, float]) -> None:
    """Write two micro-batches of eight ranks; those in `slow` take so many times longer."""
    events = []
    for rank in range(8):
        start = 0.0
        for microbatch in (0, 1):
            for step, milliseconds in (("forward", 5.0), ("backward", 10.0)):
                took = 1e3 * milliseconds * slow.get(rank, 1.0)
                args = {"step": step, "iteration": 3, "module": "images", "microbatch": microbatch}
                place = {"pid": rank, "tid": 0, "ts": start, "dur": took}
                events.append({"ph": "X", "name": f"{step} images", **place, "args": args})
                start += took
    _write_events(file, events)


def _write_events(file: Path, events: list[dict[str, Any]]) -> None:
    content = {"traceEvents": events, "otherData": {"clock_error_seconds": {}}}
    file.write_text(json.dumps(content), encoding="utf-8")
