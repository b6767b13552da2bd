"""Rounds through the pieces of training steps and collectives, on all ranks and on fewer.

What a piece costs depends on how many ranks compute beside it: they share caches as well as cores.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from statistics import median

import torch.distributed as dist

from mimokit.engine.calibration.clock import Stopwatch
from mimokit.engine.calibration.collectives import Collective, Ledger
from mimokit.engine.calibration.pieces import TimedPiece
from mimokit.engine.calibration.single_rank import IMAGES, LANGUAGE
from mimokit.engine.steps import Step
from mimokit.engine.training.monitor import PerformanceMonitor
from mimokit.prediction.calibration.measurements import PieceTime, Round
from mimokit.samples import Emit
from mimokit.step_kinds import StepKind

ROUNDS, UNCOUNTED = 7, 1
"""Rounds through all pieces, of which the first are not counted."""
STEPS, STEP_PAUSE = 40, 0.03
"""Empty steps that the cost around a step is measured over, and seconds between them: figures of
steps that follow each other at once would be sent together."""
EXECUTED_STEPS = 8
"""Named steps that a training step yields per micro-batch, about."""


def measure_round(
    pieces: Sequence[TimedPiece], collectives: Sequence[Collective], ranks: int
) -> Round | None:
    """Go through all pieces while the first ranks are at work. Collective over the world.

    Rounds go through all pieces in turn, with a collective after each: as in training, no piece
    finds the caches as it left them, the ranks never begin one together and never wait for long.

    Args:
        pieces: of this rank.
        collectives: of all groups of this rank; those of more ranks than are at work are left out.
        ranks: at work. The others sleep.

    Returns:
        What pieces and collectives took, None on a rank that slept.
    """
    found = None
    if dist.get_rank() < ranks:
        found = _go_round(
            [replace(piece, watch=Stopwatch()) for piece in pieces],
            [
                replace(one, watch=Stopwatch(), others=[])
                for one in collectives
                if one.last_member < ranks
            ],
            ranks,
        )
    dist.barrier()
    return found


def _go_round(pieces: Sequence[TimedPiece], collectives: Sequence[Collective], ranks: int) -> Round:
    ledger, begun = Ledger(), []
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
        tuple(one.time(UNCOUNTED) for one in collectives),
        median(stop - start for start, stop in pairwise(begun[UNCOUNTED:])),
    )


def step_time(emit: Emit) -> PieceTime:
    """Measure what a step costs around its work: the monitor, and sending its figures."""
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
