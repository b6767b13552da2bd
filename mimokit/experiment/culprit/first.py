"""Finds the first seam, in the order of execution, at which a layout differs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mimokit.experiment.culprit.join import Joined, Whole
from mimokit.planning.seams import PHASES, Recording, Seam, SeamPhase

FLOOR = 1e-2
"""A tensor of a sample is measured against its norm, or this share of the largest of all samples
if that is more: the gradient of a sample without a loss is rounding noise."""

TOLERANCE = 1e-5
"""Relative difference that is allowed in any case."""

ALLOWED = 8.0
"""Times the largest difference between one process and the same from weights that are changed by
a rounding that a layout may differ by."""

ARRIVED, _AFTER_THE_NEXT = ".output", 1.5


@dataclass(frozen=True)
class Measured:
    """The difference of a seam, relative to the norm of its tensor.

    Attributes:
        samples: those that differ by more than is allowed; those of a parameter are empty.
        ranks: that hold what differs.
        missing: no rank has it, or not all of it.
    """

    seam: Seam
    samples: tuple[int, ...]
    ranks: tuple[int, ...]
    difference: float
    allowed: float
    missing: bool = False

    @property
    def differs(self) -> bool:
        """Whether the difference is more than is allowed."""
        return not self.difference <= self.allowed


class Order:
    """The order of execution: that of one process, whose backward passes end before the next.

    Args:
        modules: in the order of their forward passes.
    """

    def __init__(
        self, reference: Recording, modules: Sequence[str], samples_per_microbatch: int
    ) -> None:
        self._samples = samples_per_microbatch
        self._modules = {name: place for place, name in enumerate(modules)}
        self._numbers: dict[tuple[str, str, SeamPhase], int] = {}
        for seam, record in reference.sketches.items():
            key = seam.module, seam.operation, seam.phase
            self._numbers.setdefault(key, record.number)

    def microbatch(self, sample: int) -> int:
        """Return the micro-batch of a sample, 0-based."""
        return sample // self._samples

    def key(self, found: Measured) -> tuple[float, ...]:
        """Return what comes earlier first."""
        seam, samples = found.seam, found.samples
        microbatch = self.microbatch(samples[0]) if samples else math.inf
        if not seam.phase.is_of_samples:
            microbatch = math.inf
        number: float = self._numbers.get((seam.module, seam.operation, seam.phase), 0)
        module, phase = self._modules.get(seam.module, 0), PHASES.index(seam.phase)
        if seam.phase == SeamPhase.BACKWARD:
            if seam.operation.endswith(ARRIVED):  # recorded before the layer that gives it
                number += _AFTER_THE_NEXT
            return (seam.step, microbatch, phase, -module, number)
        sign = 1 if seam.phase == SeamPhase.FORWARD else -1
        return (seam.step, microbatch, phase, sign * module, sign * number)


def measured(
    reference: Joined, found: Joined, spread: Mapping[Seam, float], allowed: float = TOLERANCE
) -> Iterator[Measured]:
    """Yield the difference of every seam that both have recorded.

    Args:
        spread: see `spread_of`.
    """
    for seam, expected in reference.items():
        other = found.get(seam)
        if other is None:
            continue
        most = max(allowed, ALLOWED * spread.get(seam, 0.0))
        yield _measured(seam, expected, other, most)


def spread_of(reference: Joined, others: Sequence[Joined]) -> dict[Seam, float]:
    """Return by how much each seam of one process differs between roundings of its weights."""
    found: dict[Seam, float] = {}
    for other in others:
        for one in measured(reference, other, {}):
            found[one.seam] = max(found.get(one.seam, 0.0), one.difference)
    return found


def _measured(
    seam: Seam, expected: Mapping[int, Whole], other: Mapping[int, Whole], most: float
) -> Measured:
    norms = {sample: math.sqrt(whole.squares) for sample, whole in expected.items()}
    if any(not part.complete for w in expected.values() for part in w.parts.values()):
        norms = {sample: _norm(whole.total) for sample, whole in expected.items()}
    floor = FLOOR * max(norms.values(), default=0.0)
    samples, ranks = [], set[int]()
    worst, missing = 0.0, False
    for sample, whole in sorted(expected.items()):
        scale = max(norms[sample], floor)
        there = other.get(sample)
        if there is None or _uncovered(whole, there):
            difference, deviating, missing = math.inf, set[int](), True
        else:
            difference, deviating = _difference(whole, there, scale, most)
        if not difference <= most:
            samples.append(sample)
            ranks |= deviating
        worst = max(worst, difference)
    return Measured(seam, tuple(samples), tuple(sorted(ranks)), worst, most, missing)


def _uncovered(whole: Whole, there: Whole) -> bool:
    expected, found = whole.coverage, there.coverage
    return expected is not None and found is not None and not np.array_equal(expected, found)


def _difference(whole: Whole, there: Whole, scale: float, most: float) -> tuple[float, set[int]]:
    """Return the largest relative difference of all copies, and the ranks that hold it."""
    expected, worst, deviating = whole.total, 0.0, set[int]()
    for rank, values in there.by_rank():
        difference = _norm(values - expected)
        relative = difference / scale if scale else (math.inf if difference else 0.0)
        relative = relative if math.isfinite(relative) else math.inf
        if not relative <= most:
            deviating.add(rank)
        worst = max(worst, relative)
    return worst, deviating


def _norm(sketch: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(sketch))))
