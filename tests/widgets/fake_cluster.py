"""A cluster of no engines whose ranks do exactly what the plan says, or what a test plants."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mimokit.cluster import RankError
from mimokit.planning.stepper import SeenCrossing, clock_of, planned_crossings
from mimokit.planning.stepper.crossings import StepRecord, TensorFacts
from mimokit.planning.stepper.pictures import MOST_CELLS, picture_of


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
        asked = list(range(world_size)) if ranks is None else ranks
        if function.__name__ == "open_stepper":
            self._plan = args[0]
            self._clock = clock_of(self._plan)
            self._tensors = {rank: _tensors(rank) for rank in asked}
        if function.__name__ != "ask_stepper":
            return [None] * len(asked)
        method, *args = args
        return [(getattr(self, f"_{method}")(rank, *args),) for rank in asked]

    def _advance(self, rank, first, count):
        if first <= self._fails_at < first + count:
            raise RankError(1, "ValueError", "planted <b>fault</b>", "Traceback …")
        return [self._record(number, rank) for number in range(first, first + count)]

    def _rows(self, rank, number, pieces):
        return [None] * len(pieces[rank])

    def _inspect(self, rank, number, name):
        return self._tensors[rank][name]

    def _pictures(self, rank, number, samples):
        return {name: self._draw(rank, name, samples.get(name)) for name in self._tensors[rank]}

    def _picture(self, rank, number, name, samples, window):
        return self._draw(rank, name, samples, window)

    def _part(self, rank, number, name, samples, most):
        picture = self._draw(rank, name, samples[rank], None, most)
        return picture, str(picture.cells.tobytes())

    def _draw(self, rank, name, samples, window=None, most=MOST_CELLS):
        array, count = self._tensors[rank][name], samples.count if samples else None
        rows = [len(array) // count] * count if count else None
        return picture_of(
            array,
            str(array.dtype),
            samples=count,
            rows_per_sample=rows,
            window=window,
            most=most,
            images=array.ndim == 4,
        )

    def _edit(self, rank, number, name, values, index):
        self._tensors[rank][name][index or ...] = values

    def _prints(self, rank, number):
        return None

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
            tensors={
                name: TensorFacts(array.shape, str(array.dtype))
                for name, array in self._tensors[rank].items()
            },
            result={"loss": 2.5, "grad_norm": 1.0} if step and step.name == "report" else {},
        )


def _tensors(rank):
    draw = np.random.default_rng(rank)
    hidden = draw.normal(size=(8, 64)).astype(np.float32)
    hidden[3, 5] = np.nan
    return {
        "loaded.input_ids": draw.integers(0, 16, (4, 18)),
        "loaded.modality_inputs.images.pixel_values": draw.random((4, 1, 8, 16), np.float32),
        "microbatch.0.output.tensor": hidden,
    }


def other_values(piece: SeenCrossing) -> SeenCrossing:
    """Have rank 4 take other values than it was sent."""
    if piece.sent or piece.crossing.destination_rank != 4:
        return piece
    return replace(piece, prints=tuple("other" for _ in piece.prints))
