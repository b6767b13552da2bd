"""What all metrics and streaming cost a training step, and whether a sample is lost.

In one run on the same ranks every other block of steps is measured and sent, so that a machine
whose speed drifts, or that others use, slows both kinds alike; the order within each pair
alternates. All ranks take part in a step, so the time of rank 0 is that of the step. What a monitor
takes by itself is also measured as CPU time of all ranks, which others on the machine hardly
change. It counts until the samples have left: another thread sends them after the step.
`python -m benchmarks.watching_cost [--pairs N] [--seconds S]`.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

import mimokit
from benchmarks.paced_run import RANKS, send_at_a_pace
from benchmarks.table import show
from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.config_files import load_experiment_config
from mimokit.planning.types import LayoutPlan
from mimokit.samples import to_wire

CONFIGS = Path(__file__).parents[1] / "configs"
LAYOUTS = ("digits_colocated", "digits_heterogeneous")
WARMUP = 3
STEPS = 2
"""Of a block."""
SECONDS_TO_LEAVE = 0.25
MOST = 2.0
RATE = 50.0


def alternate_on_rank(
    plan: LayoutPlan, config: ExperimentConfig, pairs: int
) -> list[tuple[float, float, float, float]]:
    """Return (plain, watched) wall seconds and (plain, watched) CPU seconds of a step, of pairs."""
    import torch.distributed as dist

    from mimokit.cluster import emit
    from mimokit.engine.part_times import UNTIMED
    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.loop import _step_sample
    from mimokit.engine.training.loop_monitor import create_performance_monitor
    from mimokit.engine.training.monitor import watch_ranks
    from mimokit.engine.training.optimizer_step import prepared, training_step

    found = []
    with prepared(RunOfRank(plan, config)) as state:
        watched = watch_ranks(state.model, config, 1e12)
        monitor = create_performance_monitor(
            config.model, config.runtime, state.model.module_to_grid_map, watched
        )
        assert monitor is not None
        mailbox = None if state.model.communicator is None else state.model.mailbox

        def switch(on: bool) -> None:
            for name, module in state.model.modules().items():
                module.times = watched.modules[name] if on else UNTIMED
            if mailbox is not None:
                mailbox.times = watched.messages if on else UNTIMED
            state.arrivals = watched.arrivals if on else None

        def step(on: bool, number: int) -> None:
            if on:
                monitor.start_step()
            result = exhaust(training_step(state), monitor.observe if on else None)
            if on:
                emit(to_wire(_step_sample(state, monitor, number, result)))

        def block(on: bool, number: int) -> tuple[float, float]:
            switch(on)
            dist.barrier()
            begin, used = time.perf_counter(), time.process_time()
            for _ in range(STEPS):
                step(on, number)
            seconds = time.perf_counter() - begin
            time.sleep(SECONDS_TO_LEAVE)
            return seconds / STEPS, (time.process_time() - used) / STEPS

        for number in range(WARMUP + pairs):
            order = (True, False) if number % 2 else (False, True)
            times = {on: block(on, number) for on in order}
            if number >= WARMUP:
                found.append((times[False][0], times[True][0], times[False][1], times[True][1]))
    return found


def cost_of_memory_on_rank(times: int = 2000) -> float:
    """Return the CPU seconds of reading the memory of one step."""
    from mimokit.engine.training.memory import memory_meter

    meter = memory_meter()
    begin = time.process_time()
    for _ in range(times):
        meter.start()
        meter.read()
    return (time.process_time() - begin) / times


def _costs(cluster: EngineCluster, name: str, pairs: int) -> list[dict[str, Any]]:
    config = load_experiment_config(CONFIGS / f"{name}.yaml")
    plan = mimokit.plan(config)
    config.model.finalize(plan.world_size)
    by_rank = cluster.run(alternate_on_rank, plan, config, pairs, world_size=RANKS)
    plain, watched, *_ = zip(*by_rank[0], strict=True)
    slower = [100 * (w / p - 1) for p, w in zip(plain, watched, strict=True)]
    spread = statistics.quantiles(slower, n=4)
    # Medians: a step in which another process runs counts many times.
    work = [
        statistics.median(sum(row[at] for row in step) for step in zip(*by_rank, strict=True))
        for at in (2, 3)
    ]
    return [
        _row(f"{name}: step, plain", 1e3 * statistics.median(plain), "ms"),
        _row(f"{name}: step, watched", 1e3 * statistics.median(watched), "ms"),
        _row(f"{name}: adds, median of {pairs} pairs", statistics.median(slower), "%", MOST),
        _row(f"{name}: lower quartile of the pairs", spread[0], "%"),
        _row(f"{name}: upper quartile of the pairs", spread[2], "%"),
        _row(f"{name}: adds CPU time, all ranks", 100 * (work[1] / work[0] - 1), "%"),
    ]


def _lost(cluster: EngineCluster, seconds: float) -> dict[str, Any]:
    count = round(seconds * RATE)
    run = cluster.submit(send_at_a_pace, count, RATE, world_size=RANKS)
    sent = sum(run.result(seconds + 60))
    ranks = Counter(sample.rank for sample in run.samples)
    lost = sent - sum(ranks.values())
    what = f"{RANKS} ranks, {RATE:g} samples/s each, {seconds:g} s"
    return _row(f"samples lost of {sent} ({what})", lost, "", 0.0)


def rows(pairs: int = 60, seconds: float = 60.0) -> list[dict[str, Any]]:
    """Measure and return the rows of the table."""
    with EngineCluster(n=RANKS, progress=False) as cluster:
        reading = max(cluster.run(cost_of_memory_on_rank, world_size=RANKS))
        found = [_row("CPU time of reading the memory of a step", 1e6 * reading, "µs")]
        for name in LAYOUTS:
            found += _costs(cluster, name, pairs)
        return [*found, _lost(cluster, seconds)]


def _row(name: str, measured: float, unit: str, target: float | None = None) -> dict[str, Any]:
    fine = target is None or measured <= target
    return {"name": name, "measured": measured, "target": target, "unit": unit, "ok": fine}


def main(
    pairs: Annotated[int, typer.Option(min=4)] = 60,
    seconds: Annotated[float, typer.Option(min=1)] = 60.0,
) -> None:
    """Print the table."""
    show("What watching costs", rows(pairs, seconds))


if __name__ == "__main__":
    typer.run(main)
