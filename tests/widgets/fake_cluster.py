"""A cluster of no engines whose ranks do exactly what the plan says, or what a test plants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mimokit.cluster import RankError
from mimokit.planning.stepper import SeenCrossing, clock_of, planned_crossings
from mimokit.planning.stepper.crossings import StepRecord, TensorFacts


class FakeCluster:
    """Answers a stepper as ranks would.

    Args:
        plant: changes a piece that a rank tells of, None leaves it out.
        fails_at: the tick at which rank 1 raises.
    """

    def __init__(
        self,
        plant: Callable[[SeenCrossing], SeenCrossing | None] = lambda piece: piece,
        fails_at: int = -1,
    ) -> None:
        self._plant = plant
        self._fails_at = fails_at
        self.ranks = ()

    def run(self, function, name, *args, world_size, ranks=None):
        if function.__name__ == "open_stepper":
            self._plan = args[0]
            self._clock = clock_of(self._plan)
        if function.__name__ == "advance_stepper":
            first, count = args
            if first <= self._fails_at < first + count:
                raise RankError(1, "ValueError", "planted <b>fault</b>", "Traceback …")
            numbers = range(first, first + count)
            return [[self._record(n, rank) for n in numbers] for rank in range(world_size)]
        return [None] * world_size

    def _record(self, number, rank):
        tick = self._clock[number % len(self._clock)]
        step = tick.steps.get(rank)
        pieces = []
        for crossing, sent in planned_crossings(self._plan, tick):
            if rank != (crossing.source_rank if sent else crossing.destination_rank):
                continue
            prints = tuple(map(str, range(crossing.start, crossing.stop)))
            pieces.append(
                SeenCrossing(crossing, sent, (8, 64), 2048, prints, code="here.py:7\nsend()")
            )
        planted = [self._plant(piece) for piece in pieces]
        return StepRecord(
            number,
            rank,
            None if step is None else str(step),
            "",
            code="" if step is None else "there.py:3\nif a < b:\n    do()",
            pieces=tuple(piece for piece in planted if piece is not None),
            tensors={"loaded.input_ids": TensorFacts((4, 18), "int64")},
            result={"loss": 2.5, "grad_norm": 1.0} if step and step.name == "report" else {},
        )


def other_values(piece: SeenCrossing) -> SeenCrossing:
    """Have rank 4 take other values than it was sent."""
    if piece.sent or piece.crossing.destination_rank != 4:
        return piece
    return replace(piece, prints=tuple("other" for _ in piece.prints))
