"""What tracing costs a training step.

In one run on the same ranks every other step is traced, so that a machine whose speed drifts, or
that others use, slows both kinds alike; the order within each pair alternates. All ranks take part
in a step, so the time of rank 0 is that of the step. What a tracer takes by itself is measured as
CPU time, which others on the machine hardly change.
`python -m benchmarks.trace_overhead [--pairs N]`.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated, Any

import typer

import mimokit
from benchmarks.table import show
from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.config_files import load_experiment_config
from mimokit.planning.stepper import clock_of
from mimokit.planning.types import LayoutPlan
from mimokit.samples import to_wire
from mimokit.step_kinds import StepKind

CONFIGS = Path(__file__).parents[1] / "configs"
LAYOUTS = ("digits_colocated", "digits_heterogeneous")
WARMUP = 5


def alternate_on_rank(
    plan: LayoutPlan, config: ExperimentConfig, pairs: int
) -> list[tuple[float, float, float, float]]:
    """Return (untraced, traced) wall seconds and (untraced, traced) CPU seconds of pairs."""
    import time

    import torch.distributed as dist

    from mimokit.cluster import emit
    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.optimizer_step import prepared, training_step
    from mimokit.engine.training.tracer import Tracer, align_clocks

    def step(traced: bool, number: int) -> tuple[float, float]:
        dist.barrier()
        begin, used = time.perf_counter(), time.process_time()
        exhaust(training_step(state), tracer.observe if traced else None)
        if traced:
            tracer.end_iteration(number)
        return time.perf_counter() - begin, time.process_time() - used

    found = []
    with prepared(RunOfRank(plan, config)) as state:
        tracer = Tracer(lambda sample: emit(to_wire(sample)), align_clocks())
        for number in range(WARMUP + pairs):
            order = (True, False) if number % 2 else (False, True)
            times = {traced: step(traced, number) for traced in order}
            if number >= WARMUP:
                found.append((times[False][0], times[True][0], times[False][1], times[True][1]))
    return found


def cost_of_a_step_on_rank(times: int = 20_000) -> float:
    """Return the CPU seconds that a tracer takes for one step of the schedule, sending included."""
    import time

    from mimokit.cluster import emit
    from mimokit.engine.steps import Step
    from mimokit.engine.training.tracer import ClockOffset, Tracer

    tracer = Tracer(lambda sample: emit(to_wire(sample)), ClockOffset(0.0, 0.0))
    step = Step(StepKind.FORWARD, "language_module", 0)
    per_iteration = 50
    begin = time.process_time()
    for number in range(times // per_iteration):
        for _ in range(per_iteration):
            tracer.observe(step)
        tracer.end_iteration(number)
    return (time.process_time() - begin) / times


def rows(pairs: int = 60) -> list[dict[str, Any]]:
    """Measure and return the rows of the table."""
    found = []
    with EngineCluster(n=8, progress=False) as cluster:
        cost = max(cluster.run(cost_of_a_step_on_rank, world_size=8))
        found.append(_row("CPU time of a tracer per step of the schedule", 1e6 * cost, "µs"))
        for name in LAYOUTS:
            config = load_experiment_config(CONFIGS / f"{name}.yaml")
            plan = mimokit.plan(config)
            config.model.finalize(plan.world_size)
            by_rank = cluster.run(alternate_on_rank, plan, config, pairs, world_size=8)
            plain, traced, *_ = zip(*by_rank[0], strict=True)
            slower = [100 * (t / p - 1) for p, t in zip(plain, traced, strict=True)]
            spread = statistics.quantiles(slower, n=4)
            work = 100 * (
                sum(row[3] for rank in by_rank for row in rank)
                / sum(row[2] for rank in by_rank for row in rank)
                - 1
            )
            median = statistics.median(slower)
            steps = max(sum(r in tick.steps for tick in clock_of(plan)) for r in range(8))
            share = 100 * cost * steps / statistics.median(plain)
            found += [
                _row(f"{name}: {steps} steps of a rank, of a training step", share, "%", 1.0),
                _row(f"{name}: step, not traced", 1e3 * statistics.median(plain), "ms"),
                _row(f"{name}: step, traced", 1e3 * statistics.median(traced), "ms"),
                _row(f"{name}: tracing adds, median of {pairs} pairs", median, "%"),
                _row(f"{name}: lower quartile of the pairs", spread[0], "%"),
                _row(f"{name}: upper quartile of the pairs", spread[2], "%"),
                _row(f"{name}: tracing adds CPU time, all ranks", work, "%"),
            ]
    return found


def _row(name: str, measured: float, unit: str, target: float | None = None) -> dict[str, Any]:
    fine = target is None or measured <= target
    return {"name": name, "measured": measured, "target": target, "unit": unit, "ok": fine}


def main(pairs: Annotated[int, typer.Option(min=4)] = 60) -> None:
    """Print the table."""
    show("What tracing costs", rows(pairs))


if __name__ == "__main__":
    typer.run(main)
