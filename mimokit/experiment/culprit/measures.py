"""Finds the first seam, in the order of execution, at which a layout differs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mimokit.experiment.culprit.sketches import Joined, Whole
from mimokit.experiment.tolerances import ALLOWED_WITH_EXPERTS, TOLERANCE, allowed_of
from mimokit.planning.seams import PHASES, Recording, Seam, SeamPhase

FLOOR = 1e-2
"""A tensor of a sample is measured against its norm, or this share of the largest of all samples
if that is more: the gradient of a sample without a loss is rounding noise."""

ROUNDED_STEPS = 4 * 2.0**-23
"""Share of a weight, in fp32, by which its change may differ besides; as in `verify`."""

ARRIVED, _AFTER_THE_NEXT = ".output", 1.5


@dataclass(frozen=True)
class Measured:
    """The difference of a seam, relative to the norm of its tensor.

    A weight after an update is measured by what the update has changed.

    Attributes:
        samples: those that differ by more than is allowed; those of a parameter are empty.
        missing: no rank has it, or not all of it.
        spread: its largest difference between one process and the same from rounded weights.
        by_rank: rank that has some of it -> the largest difference of the whole if that rank's
            copies are taken.
    """

    seam: Seam
    samples: tuple[int, ...]
    ranks: tuple[int, ...]
    difference: float
    allowed: float
    missing: bool = False
    spread: float = 0.0
    by_rank: Mapping[int, float] = field(default_factory=dict, hash=False)

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
        numbered = {number: key for key, number in self._numbers.items()}
        self._arriving = {
            number
            for number, (module, operation, _) in numbered.items()
            if operation.endswith(ARRIVED) and _is_layer(module, numbered.get(number + 1))
        }

    def microbatch(self, sample: int) -> int:
        """Return the micro-batch of a sample, 0-based."""
        return sample // self._samples

    def key(self, measure: Measured) -> tuple[float, ...]:
        """Return what comes earlier first."""
        seam, samples = measure.seam, measure.samples
        microbatch = self.microbatch(samples[0]) if samples else math.inf
        if not seam.phase.is_of_samples:
            microbatch = math.inf
        number: float = self._numbers.get((seam.module, seam.operation, seam.phase), 0)
        module, phase = self._modules.get(seam.module, 0), PHASES.index(seam.phase)
        if seam.phase == SeamPhase.BACKWARD:
            if number in self._arriving:  # recorded before the layer that gives it
                number += _AFTER_THE_NEXT
            return (seam.step, microbatch, phase, -module, number)
        sign = 1 if seam.phase == SeamPhase.FORWARD else -1
        return (seam.step, microbatch, phase, sign * module, sign * number)


def _is_layer(module: str, key: tuple[str, str, SeamPhase] | None) -> bool:
    if key is None or key[0] != module or key[2] != SeamPhase.BACKWARD:
        return False
    return key[1].rpartition("layers.")[2].isdigit()


def measured(
    reference: Joined,
    actual: Joined,
    spread: Mapping[Seam, float],
    times: float = ALLOWED_WITH_EXPERTS,
) -> Iterator[Measured]:
    """Yield the difference of every seam that both have recorded.

    Args:
        spread: see `spread_of`.
        times: the spread that are allowed; see `ALLOWED`.
    """
    for seam, expected, other, rounding in _pairs(reference, actual):
        of_seam = spread.get(seam, 0.0)
        yield _measured(seam, expected, other, of_seam, rounding, allowed_of(of_seam, times))


def _pairs(
    reference: Joined, actual: Joined
) -> Iterator[tuple[Seam, Mapping[int, Whole], Mapping[int, Whole], float]]:
    """Yield what is compared of every seam, and the norm of a difference that is not counted."""
    for seam, expected in reference.items():
        other = actual.get(seam)
        if other is None:
            continue
        rounding = 0.0
        if seam.phase == SeamPhase.NORM:
            share = _share_of_gradients(seam.step, reference, actual)
            expected = {sample: whole.times(share) for sample, whole in expected.items()}
        before = replace(seam, step=seam.step - 1)
        if seam.phase == SeamPhase.WEIGHT and before in reference and before in actual:
            squares = sum(whole.squares for whole in expected.values())
            rounding = ROUNDED_STEPS * math.sqrt(squares)
            expected = _changes(expected, reference[before])
            other = _changes(other, actual[before])
        yield seam, expected, other, rounding


def _share_of_gradients(step: int, reference: Joined, actual: Joined) -> float:
    """Return the norm of the reduced gradients that were found, over that of the reference.

    A norm is measured by that of its own gradients, which are compared before it: what a rounding
    changes of these would hide a few parameters that are counted twice, or not at all.
    """
    seams = [
        seam for seam in reference
        if seam.step == step and seam.phase == SeamPhase.REDUCED and seam in actual
    ]  # fmt: skip
    theirs, own = (
        sum(whole.squares for seam in seams for whole in joined[seam].values())
        for joined in (reference, actual)
    )
    share = math.sqrt(own / theirs) if theirs else 1.0
    return share if math.isfinite(share) else 1.0


def _changes(weight: Mapping[int, Whole], before: Mapping[int, Whole]) -> dict[int, Whole]:
    return {sample: whole.change_since(before[sample]) for sample, whole in weight.items()}


def spread_of(reference: Joined, others: Sequence[Joined]) -> dict[Seam, float]:
    """Return by how much each seam of one process differs between roundings of its weights.

    The weights before the first step are what is rounded: they have no spread. All of a difference
    counts here: of one that is hardly more than the rounding of a weight, nothing would be left.
    """
    spread: dict[Seam, float] = {}
    for other in others:
        for seam, expected, changed, _ in _pairs(reference, other):
            if seam.step >= 0:
                measure = _measured(seam, expected, changed, 0.0, 0.0, TOLERANCE)
                spread[seam] = max(spread.get(seam, 0.0), measure.difference)
    return spread


def _measured(
    seam: Seam,
    expected: Mapping[int, Whole],
    other: Mapping[int, Whole],
    spread: float,
    rounding: float,
    most: float,
) -> Measured:
    norms = {sample: math.sqrt(whole.squares) for sample, whole in expected.items()}
    if any(not part.complete for w in expected.values() for part in w.parts.values()):
        norms = {sample: _norm(whole.total) for sample, whole in expected.items()}
    floor = FLOOR * max(norms.values(), default=0.0)
    samples, ranks, by_rank = [], set[int](), dict[int, float]()
    worst, missing = 0.0, False
    for sample, whole in sorted(expected.items()):
        scale = max(norms[sample], floor)
        there = other.get(sample)
        if there is None or _uncovered(whole, there):
            difference, of_ranks, missing = math.inf, dict[int, float](), True
        else:
            of_ranks = _differences(whole, there, scale, rounding)
            difference = max(of_ranks.values(), default=0.0)
        if not difference <= most:
            samples.append(sample)
            ranks |= {rank for rank, apart in of_ranks.items() if not apart <= most}
        for rank, apart in of_ranks.items():
            by_rank[rank] = max(by_rank.get(rank, 0.0), apart)
        worst = max(worst, difference)
    return Measured(
        seam, tuple(samples), tuple(sorted(ranks)), worst, most, missing, spread, by_rank
    )


def _uncovered(whole: Whole, there: Whole) -> bool:
    expected, covered = whole.places, there.places
    return expected is not None and covered is not None and expected != covered


def _differences(whole: Whole, there: Whole, scale: float, rounding: float) -> dict[int, float]:
    """Return the largest relative difference of the copies of each rank.

    Args:
        rounding: norm of a difference that is not counted.
    """
    expected, largest = whole.total, dict[int, float]()
    for rank, values in there.by_rank():
        difference = _norm(values - expected)
        difference = 0.0 if difference <= rounding else difference - rounding
        relative = difference / scale if scale else (math.inf if difference else 0.0)
        relative = relative if math.isfinite(relative) else math.inf
        largest[rank] = max(largest.get(rank, 0.0), relative)
    return largest


def _norm(sketch: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(sketch))))
