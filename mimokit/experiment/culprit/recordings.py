"""`mimokit.compare`: two recordings of `mimokit.watch`, tensor by tensor in order of execution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from mimokit.experiment.culprit.first import TOLERANCE, allowed_of
from mimokit.experiment.culprit.recorded import (
    BACKWARD,
    BEFORE,
    OF_CALLS,
    Array,
    Key,
    Recorded,
    RecordedPart,
    assembled,
    read_recording,
)
from mimokit.tables import Report, Section, html_table
from mimokit.units import counted

COLUMNS = ("step", "call", "phase", "tensors", "largest", "at")

TOLERANCES = {"float64": 1e-5, "float32": 1e-5, "float16": 2.0**-8, "bfloat16": 2.0**-5}
"""Largest difference of a tensor, relative to its norm, by its type of fewer bits, where no
recording says what a rounding changes."""

SHOWN = 14
"""Rows of the table; with headings and sentences it has at most 20 lines."""


@dataclass(frozen=True)
class Difference:
    """A tensor that both have.

    Attributes:
        spread: by how much it differs between roundings of the weights, at most; None: not known.
    """

    key: Key
    difference: float
    allowed: float
    ranks: tuple[int, ...]
    spread: float | None = None

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
        unlike: those that only one of the two has.
        notes: sentences about what makes the two differ besides, such as their seeds.
    """

    names: tuple[str, str]
    compared: tuple[Difference, ...]
    untold: tuple[str, ...]
    unlike: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Difference | None:
        """The first tensor that differs."""
        return next((one for one in self.compared if one.differs), None)

    @property
    def passed(self) -> bool:
        """Whether none does."""
        return self.first is None

    @property
    def verdict(self) -> str:
        """A sentence that names the first tensor that differs, and what was not compared."""
        rest = ""
        if self.untold:
            rest += f" How ranks share {_listed(self.untold)} cannot be told; not compared."
        if self.unlike:
            rest += f" Only one of the two has {_listed(self.unlike)}."
        first = self.first
        if first is None:
            return (
                f"{counted(len(self.compared), 'tensor')} of {self.names[0]} and {self.names[1]} "
                f"are the same: none differs by more than is allowed.{rest}"
            )
        notes = "".join(f"{note} " for note in self.notes)
        spread = "" if first.spread is None else f"a rounding changes it by {first.spread:.1e}, "
        step, call, phase, operation = first.key
        where = f"Step {step + 1}" + (f", call {call + 1}" if phase in OF_CALLS else "")
        ranks = f" on ranks {', '.join(map(str, first.ranks))}" if len(first.ranks) > 1 else ""
        return (
            f"{notes}{where}: the first tensor of {self.names[1]} that differs from "
            f"{self.names[0]} is {_WORDS[phase]} {operation}{ranks}, by {first.difference:.1e}; "
            f"{spread}{first.allowed:.1e} is allowed.{rest}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        first = self.first
        return {
            "recordings": list(self.names),
            "passed": self.passed,
            "verdict": self.verdict,
            "tensors": len(self.compared),
            "untold": list(self.untold),
            "unlike": list(self.unlike),
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
        for one in self.compared:
            groups.setdefault(one.key[:3], []).append(one)
        first = self.first
        place = 0 if first is None else list(groups).index(first.key[:3])
        start = max(0, min(place - SHOWN // 2, len(groups) - SHOWN))
        for (step, call, phase), found in list(groups.items())[start : start + SHOWN]:
            worst = max(found, key=lambda one: one.difference / one.allowed)
            numbers = [str(step + 1), str(call + 1), phase, str(len(found))]
            at = f"{first.key[3]} ← first" if first in found and first else worst.key[3]
            yield [*numbers, f"{worst.difference:.1e}", at]

    def _repr_html_(self) -> str:
        return f"{html_table(COLUMNS, list(self._rows()))}<p>{escape(self.verdict)}</p>"


_WORDS = {
    "forward": "the output of",
    "backward": "the gradient from",
    "gradient": "the gradient of",
    "weight": "the weight",
    "weight before": "before the first step the weight",
}


def compare(
    one: str | Path, other: str | Path, roundings: Sequence[str | Path] = ()
) -> RecordingComparison:
    """Compare two recordings of `mimokit.watch`: one process and several ranks, or two layouts.

    A part of a rank is placed by the placements of a DTensor, by Megatron's marks, or by its shape
    next to that of the other recording: what is smaller along one dimension is cut along it, in the
    order of the ranks.

    Args:
        roundings: recordings of the first loop with `nudge`, which say what a rounding changes.

    Raises:
        ValueError: a folder is no recording, one was cut off, or two have different steps or
            models.
    """
    folders = [Path(one), Path(other), *map(Path, roundings)]
    first, second, *nudged = map(read_recording, folders)
    for folder, recording in zip(folders[1:], (second, *nudged), strict=True):
        _check_alike(folders[0], first, folder, recording)
    found, untold = [], []
    for key, parts in first.in_order():
        theirs = second.parts.get(key)
        if theirs is None:
            continue
        of_nudged = [] if key[2] == BEFORE else [other.parts.get(key) for other in nudged]
        spread = _spread(parts, of_nudged)
        difference = _compared(key, parts, theirs, spread)
        if difference is None:
            untold.append(key[3])
        else:
            found.append(difference)
    unlike = {key[3] for key in first.parts.keys() ^ second.parts.keys()}
    return RecordingComparison(
        (str(one), str(other)),
        tuple(found),
        tuple(dict.fromkeys(untold)),
        tuple(sorted(unlike)),
        tuple(_notes(first, second)),
    )


def _check_alike(one: Path, first: Recorded, other: Path, second: Recorded) -> None:
    if first.steps != second.steps:
        raise ValueError(
            f"{one} has {counted(first.steps, 'step')}, {other} has "
            f"{counted(second.steps, 'step')}; record as many steps of both."
        )
    if not first.parts.keys() & second.parts.keys():
        raise ValueError(
            f"{one} and {other} have no tensor in common: the first has {_listed(first.names())}, "
            f"the second {_listed(second.names())}; record the same model in both."
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
    parts: Sequence[RecordedPart], nudged: Sequence[Sequence[RecordedPart] | None]
) -> float | None:
    """Return the largest difference between roundings of the weights."""
    wholes = [assembled(parts, parts)]
    wholes += [assembled(others, parts) for others in nudged if others is not None]
    known = [whole for whole in wholes if whole is not None]
    return max((_relative(known[0], whole) for whole in known[1:]), default=None)


def _compared(
    key: Key,
    parts: Sequence[RecordedPart],
    theirs: Sequence[RecordedPart],
    spread: float | None,
) -> Difference | None:
    """Return how far the second is from the first; None if a cut cannot be told."""
    whole = assembled(parts, theirs)
    other = None if whole is None else assembled(theirs, parts)
    if whole is None or other is None or whole.shape != other.shape:
        return None
    relative = _relative(whole, other)
    if key[2] == BACKWARD:  # a loss that is a mean over the samples of a rank
        ranks = [len(one) if one[0].values.shape != whole.shape else 1 for one in (parts, theirs)]
        relative = min(relative, _relative(whole * ranks[1], other * ranks[0]))
    if spread is None:
        allowed = max(TOLERANCES.get(p.about["dtype"], TOLERANCE) for p in (*parts, *theirs))
    else:
        allowed = allowed_of(spread)
    return Difference(key, relative, allowed, tuple(part.rank for part in theirs), spread)


def _relative(whole: Array, other: Array) -> float:
    norm, distance = float(np.linalg.norm(whole)), float(np.linalg.norm(other - whole))
    relative = distance / norm if norm else (0.0 if distance == 0 else float("inf"))
    return relative if np.isfinite(relative) else float("inf")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
