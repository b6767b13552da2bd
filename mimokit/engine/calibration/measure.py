"""All measurements of one rank, in the order in which all ranks do them.

Rounds go through the pieces of training steps and the collectives, on all ranks and on fewer: the
cost of a piece depends on how many ranks compute at the same time, as they share caches and cores.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from statistics import median

import psutil
import torch
import torch.distributed as dist

from mimokit.engine.calibration.collectives import (
    CpuCharges,
    TimedCollective,
    collectives_over,
    group_sizes,
)
from mimokit.engine.calibration.pieces import TimedPiece, pieces_of_step
from mimokit.engine.calibration.single_rank import IMAGES, LANGUAGE, Alone
from mimokit.engine.calibration.timing import (
    Stopwatch,
    attention_rates,
    cores,
    memory_bandwidth,
    product_times,
)
from mimokit.engine.collectives import gather_json
from mimokit.engine.device import close_groups_since, open_groups, rank_device
from mimokit.engine.megatron import CPU_ONLY
from mimokit.engine.steps import Step
from mimokit.engine.training.monitor import PerformanceMonitor
from mimokit.prediction.calibration.measurements import PieceTime, RankMeasurements, Round
from mimokit.samples import CalibrationSample, Emit
from mimokit.step_kinds import StepKind
from mimokit.units import counted

ROUNDS, UNCOUNTED = 7, 1
"""Rounds through all pieces, of which the first are not counted."""
STEPS, STEP_PAUSE = 40, 0.03
"""Empty steps that the cost around a step is measured over, and seconds between them: figures of
steps that follow each other at once would be sent together."""
EXECUTED_STEPS = 8
"""Named steps that a training step yields per micro-batch, about."""


def measure_round(
    pieces: Sequence[TimedPiece], collectives: Sequence[TimedCollective], ranks: int
) -> Round | None:
    """Run rounds of all pieces while the first ranks work. Collective over the world.

    A round runs all pieces in turn, with a collective after each. As in training, no piece finds
    the caches as it left them, and ranks neither begin a piece together nor wait long.

    Args:
        collectives: of all groups of this rank; those with idle ranks are left out.
        ranks: number of ranks that work; the others sleep.

    Returns:
        The times of pieces and collectives, None on a rank that slept.
    """
    measured = None
    if dist.get_rank() < ranks:
        measured = _go_round(
            [replace(piece, watch=Stopwatch()) for piece in pieces],
            [
                replace(c, watch=Stopwatch(), others=[])
                for c in collectives
                if c.last_member < ranks
            ],
            ranks,
        )
    dist.barrier()
    return measured


def _go_round(
    pieces: Sequence[TimedPiece], collectives: Sequence[TimedCollective], ranks: int
) -> Round:
    ledger, begun = CpuCharges(), []
    for _ in range(ROUNDS):
        begun.append(time.perf_counter())
        for piece, collective in zip_longest(pieces, collectives):
            if piece is not None:
                piece.run(piece.watch)
            if collective is not None:
                ledger.call(collective)
    ledger.close()
    begun.append(time.perf_counter())
    return Round(
        ranks,
        tuple(piece.time(UNCOUNTED) for piece in pieces),
        tuple(collective.time(UNCOUNTED) for collective in collectives),
        median(stop - start for start, stop in pairwise(begun[UNCOUNTED:])),
    )


def step_time(emit: Emit) -> PieceTime:
    """Measure the overhead of a step: the monitor, and sending its figures."""
    monitor = PerformanceMonitor([IMAGES, LANGUAGE], 1)
    wall, cpu = time.perf_counter(), time.process_time()
    for iteration in range(STEPS):
        monitor.start_step()
        for number in range(EXECUTED_STEPS):
            monitor.observe(Step(StepKind.FORWARD, LANGUAGE, number))
        emit(monitor.end_step(iteration, samples=1, language_tokens=1, loss=0.0, grad_norm=0.0))
        time.sleep(STEP_PAUSE)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return PieceTime("step", {"step": 1}, wall / STEPS, cpu / STEPS)


def measure(emit: Emit, precision: str | None = None) -> RankMeasurements:
    """Measure on this rank, and emit a `CalibrationSample` before each part. Collective.

    Args:
        precision: of products and attention; None: fp32 and bf16, that of training on this device
            first.
    """
    if CPU_ONLY:
        torch.set_num_threads(1)

    def next_part(name: str) -> None:
        dist.barrier()
        if dist.get_rank() == 0:
            emit(CalibrationSample(name))

    before, hosts = open_groups(), gather_json(platform.node())
    next_part("cores and memory")
    share, bandwidth = cores(), memory_bandwidth()
    next_part("matrix products and attention")
    precisions = _precisions(precision)
    products, attention = product_times(precisions), attention_rates(precisions)
    collectives: list[TimedCollective] = []
    for size in group_sizes(dist.get_world_size()):
        next_part(f"collectives over {counted(size, 'rank')}")
        collectives += collectives_over(size, hosts)
    pieces, stages = pieces_of_step(Alone.create())
    # Groups of all sizes in turn, so that no size follows only one kind of piece.
    collectives.sort(key=lambda collective: (collective.size, collective.kind, collective.ranks))
    rounds = []
    for ranks in at_work(dist.get_world_size()):
        next_part(f"pieces of a training step, {counted(ranks, 'rank')} at work")
        rounds.append(measure_round(pieces, collectives, ranks))
    next_part("what a step costs around its pieces")
    around = step_time(emit)
    for stage in stages:
        stage.wrapped.release()
    share = (share + cores()) / 2
    close_groups_since(before)
    device, memory = _device(hosts)
    return RankMeasurements(
        device=device,
        host=hosts[dist.get_rank()],
        shares_cores=CPU_ONLY,
        memory_bytes=memory,
        memory_bandwidth=bandwidth,
        cores=share,
        products=tuple(products),
        attention=attention,
        rounds=tuple(replace(r, pieces=(around, *r.pieces)) for r in rounds if r is not None),
    )


def at_work(world: int) -> list[int]:
    """Return the numbers of ranks with which rounds are measured, ending with all ranks.

    The speed of ranks with separate devices does not depend on other ranks.
    """
    return [*group_sizes(world - 1), world] if CPU_ONLY else [world]


def _precisions(asked: str | None) -> tuple[str, ...]:
    if asked is not None:
        return (asked,)
    return ("fp32", "bf16") if CPU_ONLY else ("bf16", "fp32")


def _device(hosts: list[str]) -> tuple[str, float]:
    """Return the name of the device and the bytes of its memory that one rank can use."""
    if not CPU_ONLY:
        properties = torch.cuda.get_device_properties(rank_device())
        return properties.name, float(properties.total_memory)
    sharing = hosts.count(platform.node())
    name = platform.processor() or platform.machine()
    return f"one of {counted(sharing, 'rank')} on {name}", psutil.virtual_memory().total / sharing
