"""`mimokit.compare`: two recordings of `mimokit.watch`, tensor by tensor in order of execution."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mimokit.experiment.tolerances import allowed_of
from mimokit.extras.foreign_loops.noise import Floats, NoiseOfSteps, tolerance_of
from mimokit.extras.foreign_loops.places import Placed, apart, norm_of, placed, whole_shapes
from mimokit.extras.foreign_loops.recording import (
    BACKWARD,
    BEFORE,
    OF_CALLS,
    WEIGHT,
    Array,
    Key,
    Recorded,
    RecordedPart,
    read_recording,
)
from mimokit.tables import Report, Section
from mimokit.units import counted

COLUMNS = ("step", "call", "phase", "tensors", "largest", "at")

SHOWN = 14
"""Rows of the table; with headings and sentences it has at most 20 lines."""


@dataclass(frozen=True)
class Difference:
    """A tensor that both have.

    Attributes:
        ranks: that hold what differs; empty for one process.
        spread: by how much it differs between roundings of the weights, at most; None: not known.
        in_first: copies of the first recording differ from each other, and `ranks` are its own.
        explained: of a weight, the difference that the noise of its gradients explains, which is
            not counted.
    """

    key: Key
    difference: float
    allowed: float
    ranks: tuple[int, ...]
    spread: float | None = None
    in_first: bool = False
    explained: float = 0.0

    @property
    def differs(self) -> bool:
        """Whether the difference is more than is allowed."""
        return not self.difference <= self.allowed


@dataclass(frozen=True, repr=False)
class RecordingComparison(Report):
    """Two recordings.

    Attributes:
        compared: every tensor that both have, in the order of execution.
        untold: those of which neither names, marks nor shapes tell how ranks share them.
        unlike: those that only the first has, and those that only the second has.
    """

    names: tuple[str, str]
    compared: tuple[Difference, ...]
    untold: tuple[str, ...]
    unlike: tuple[tuple[str, ...], tuple[str, ...]]
    reshaped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Difference | None:
        """The first tensor that differs."""
        return next((tensor for tensor in self.compared if tensor.differs), None)

    @property
    def passed(self) -> bool:
        """Whether tensors were compared, and none differs, in its shape either."""
        return bool(self.compared) and self.first is None and not self.reshaped

    @property
    def verdict(self) -> str:
        """A sentence that names the first tensor that differs, and what was not compared."""
        notes = "".join(f"{note} " for note in self.notes)
        return notes + " ".join([self._answer(), *self._not_compared()])

    def _answer(self) -> str:
        name, other = self.names
        if self.first is not None:
            return self._sentence(self.first)
        number = counted(len(self.compared), "tensor")
        if self.reshaped:
            return (
                f"{name} and {other} are of different models: {_listed(self.reshaped)} differ in "
                f"their shapes; {number} besides are the same."
            )
        if not self.compared:
            return f"No tensor of {name} and {other} could be compared."
        closest = max(self.compared, key=lambda each: each.difference / each.allowed)
        return (
            f"{number} of {name} and {other} are the same: none differs by more than is allowed; "
            f"closest to it is {_named(closest.key)}, by {closest.difference:.1e}"
            f"{_of_rounding(closest)}, {closest.allowed:.1e} is allowed."
        )

    def _sentence(self, first: Difference) -> str:
        name, other = self.names
        step, call, phase, _ = first.key
        where = f"Step {step + 1}" + (f", call {call + 1}" if phase in OF_CALLS else "")
        ranks = ""
        if first.ranks:
            ranks = f" on rank{'s'[: len(first.ranks) - 1]} {', '.join(map(str, first.ranks))}"
        if first.in_first:
            ranks += f" of {name}, whose ranks should hold the same"
        return (
            f"{where}: the first tensor of {other} that differs from {name} is "
            f"{_named(first.key)}{ranks}, by {first.difference:.1e}{_of_rounding(first)}, "
            f"{first.allowed:.1e} is allowed."
        )

    def _not_compared(self) -> Iterator[str]:
        noisy = tuple(dict.fromkeys(tensor.key[3] for tensor in self.compared if tensor.explained))
        if noisy:
            yield (
                f"Entries of {_listed(noisy)} whose gradients are rounding noise say nothing, as "
                "Adam divides by their size."
            )
        if self.untold:
            yield f"How ranks share {_listed(self.untold)} cannot be told; not compared."
        for name, unlike in zip(self.names, self.unlike, strict=True):
            if unlike:
                yield f"Only {name} has {_listed(unlike)}."

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        first = self.first
        return {
            "recordings": list(self.names),
            "passed": self.passed,
            "verdict": self.verdict,
            "tensors": len(self.compared),
            "untold": list(self.untold),
            "unlike": dict(zip(self.names, map(list, self.unlike), strict=True)),
            "reshaped": list(self.reshaped),
            "notes": list(self.notes),
            "first": None
            if first is None
            else {
                "step": first.key[0],
                "call": first.key[1],
                "phase": first.key[2],
                "operation": first.key[3],
                "difference": first.difference,
                "allowed": first.allowed,
                "spread": first.spread,
                "ranks": list(first.ranks),
            },
        }

    def section(self) -> Section:
        """Return a row per step, call and phase; the last line is the sentence."""
        return Section("Two recordings", COLUMNS, list(self._rows()), (self.verdict,))

    def _rows(self) -> Iterator[list[str]]:
        groups: dict[tuple[int, int, str], list[Difference]] = {}
        for tensor in self.compared:
            groups.setdefault(tensor.key[:3], []).append(tensor)
        first = self.first
        place = 0 if first is None else list(groups).index(first.key[:3])
        start = max(0, min(place - SHOWN // 2, len(groups) - SHOWN))
        for (step, call, phase), tensors in list(groups.items())[start : start + SHOWN]:
            worst = max(tensors, key=lambda tensor: tensor.difference / tensor.allowed)
            numbers = [str(step + 1), str(call + 1), phase, str(len(tensors))]
            at = f"{first.key[3]} ← first" if first in tensors and first else worst.key[3]
            yield [*numbers, f"{worst.difference:.1e}", at]


_WORDS = {
    "forward": "the output of",
    "backward": "the gradient from",
    "gradient": "the gradient of",
    "weight": "the weight",
    "weight before": "before the first step the weight",
}


def _named(key: Key) -> str:
    return f"{_WORDS[key[2]]} {key[3]}"


def _of_rounding(difference: Difference) -> str:
    spread = difference.spread
    return "" if spread is None else f"; a rounding changes it by {spread:.1e}"


def compare(
    recording: str | Path,
    other: str | Path,
    roundings: Sequence[str | Path] = (),
    *,
    names: Mapping[str, str] | None = None,
    cuts: Mapping[str, int] | None = None,
) -> RecordingComparison:
    """Compare two recordings of `mimokit.watch`: one process and several ranks, or two layouts.

    A part of a rank is placed by the placements of a DTensor, by Megatron's marks, or by its shape
    next to that of the other recording: what is smaller along one dimension is cut along it, in the
    order of the ranks.

    Args:
        roundings: recordings of the first loop with `nudge`, which say what a rounding changes.
        names: name in the second -> name in the first, of modules and parameters that differ; what
            is inside of a module goes with it.
        cuts: name in the first -> dimension along which ranks cut it, in their order, where neither
            marks nor shapes tell.

    Raises:
        ValueError: a folder is no recording, one was cut off, two have different steps or models,
            or a name is in none.
    """
    folders = [Path(recording), Path(other), *map(Path, roundings)]
    first, second, *nudged = map(read_recording, folders)
    second = second.renamed(names or {})
    first, second, *nudged = (each.cut(cuts or {}) for each in (first, second, *nudged))
    for folder, recorded in zip(folders[1:], (second, *nudged), strict=True):
        _check_alike(folders[0], first, folder, recorded)
    compared, untold, reshaped = [], [], []
    noise = NoiseOfSteps(first, second)
    for key, parts in first.in_order():
        theirs = second.parts.get(key)
        if theirs is None:
            continue
        of_nudged = [] if key[2] == BEFORE else [other.parts.get(key) for other in nudged]
        one_placed, other_placed = placed(parts, theirs)
        if _have_other_shapes(parts, theirs):
            reshaped.append(f"{key[3]} ({_shapes(parts)} and {_shapes(theirs)})")
        elif one_placed is None or other_placed is None or (one_placed.shape != other_placed.shape):
            untold.append(key[3])
        else:
            spread = _spread(parts, of_nudged, noise.floor(key))
            allowed = tolerance_of((*parts, *theirs)) if spread is None else allowed_of(spread)
            allowed = max(allowed, noise.allowed(key))
            how = _Judgement(key, spread, allowed, noise.floor(key), second.ranks > 1)
            compared.append(_judged(how, one_placed, other_placed, noise))
    return RecordingComparison(
        (str(recording), str(other)),
        tuple(compared),
        tuple(dict.fromkeys(untold)),
        (_only(first, second), _only(second, first)),
        tuple(dict.fromkeys(reshaped)),
        tuple(_notes(first, second)),
    )


def _only(recorded: Recorded, other: Recorded) -> tuple[str, ...]:
    return tuple(sorted({key[3] for key in recorded.parts.keys() - other.parts.keys()}))


def _have_other_shapes(parts: Sequence[RecordedPart], theirs: Sequence[RecordedPart]) -> bool:
    if "experts" in parts[0].about:
        return False
    own, other = whole_shapes(parts), whole_shapes(theirs)
    whole = all("whole" in of[0].about or len(of) == 1 for of in (parts, theirs))
    return len(own) == len(other) == 1 and own != other and whole


def _shapes(parts: Sequence[RecordedPart]) -> str:
    return " or ".join(" x ".join(map(str, shape)) for shape in sorted(whole_shapes(parts)))


def _check_alike(folder: Path, first: Recorded, other_folder: Path, second: Recorded) -> None:
    if first.steps != second.steps:
        raise ValueError(
            f"{folder} has {counted(first.steps, 'step')}, {other_folder} has "
            f"{counted(second.steps, 'step')}; record as many steps of both."
        )
    if not first.parts.keys() & second.parts.keys():
        raise ValueError(
            f"{folder} and {other_folder} have no tensor in common: the first has "
            f"{_listed(first.names())}, the second {_listed(second.names())}; record the same "
            "model in both."
        )


def _notes(first: Recorded, second: Recorded) -> Iterator[str]:
    if first.seed != second.seed:
        yield f"The first was seeded with {first.seed}, the second with {second.seed}."
    if first.drops or second.drops:
        yield (
            f"Activations are dropped at random in {_listed(first.drops or second.drops)}, and "
            "ranks that share a tensor draw other numbers than one process; set dropout to 0, or "
            "restore the state of the generator."
        )


def _spread(
    parts: Sequence[RecordedPart], nudged: Sequence[Sequence[RecordedPart] | None], floor: float
) -> float | None:
    distances = []
    for others in nudged:
        own, other = (None, None) if others is None else placed(parts, others)
        if own is not None and other is not None:
            whole = own.whole()
            distances.append(apart(whole, other, _norm(whole, floor)).difference)
    return max(distances, default=None)


def _norm(whole: Array, floor: float) -> float:
    """Return the norm of a tensor whose root mean square is taken as no less than a floor."""
    return max(norm_of(whole), floor * math.sqrt(whole.size))


@dataclass(frozen=True)
class _Judgement:
    """How a tensor is judged.

    Attributes:
        floor: root mean square against which it is measured at least.
        uncounted: of each entry, the difference that is not counted.
    """

    key: Key
    spread: float | None
    allowed: float
    floor: float
    names_ranks: bool
    uncounted: Floats | None = None


def _judged(how: _Judgement, own: Placed, other: Placed, noise: NoiseOfSteps) -> Difference:
    """Compare a tensor; of a weight leave out what the noise of its gradients explains."""
    difference = _compared(how, own, other)
    if how.key[2] != WEIGHT:
        return difference
    if difference.differs:
        uncounted = noise.uncounted(how.key, own.shape)
        rest = _compared(replace(how, uncounted=uncounted), own, other)
        difference = rest if rest.differs else replace(rest, explained=difference.difference)
    noise.add(how.key, norm_of(own.whole()), difference.explained)
    return difference


def _compared(how: _Judgement, own: Placed, other: Placed) -> Difference:
    """Return how far any copy of any part of the second is from the first, and the reverse."""
    whole, theirs = own.whole(), other.whole()
    norm = _norm(whole, how.floor)
    factors = {1.0}
    if how.key[2] == BACKWARD:  # a loss that is a mean over the samples of a rank
        factors.add(own.cuts / other.cuts)
    distances = []
    for factor in factors:
        forth = apart(whole, other, norm, factor, how.uncounted)
        back = apart(factor * theirs, own, norm, uncounted=how.uncounted)
        distances.append((max(forth.difference, back.difference), forth, back))
    difference, forth, back = min(distances, key=lambda each: each[0])
    # Where copies of the first differ from each other, the wrong ones are in the first.
    in_first = apart(whole, own, norm, uncounted=how.uncounted).difference > how.allowed
    ranks = (back if in_first else forth).deviating(how.allowed)
    named = ranks if how.names_ranks or in_first else ()
    return Difference(how.key, difference, how.allowed, named, how.spread, in_first)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
