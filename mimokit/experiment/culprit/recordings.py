"""`mimokit.compare`: two recordings of `mimokit.watch`, tensor by tensor in order of execution."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from mimokit.result_files import WatchFile
from mimokit.tables import Report, Section, html_table
from mimokit.units import counted

COLUMNS = ("step", "call", "phase", "tensors", "largest", "at")

TOLERANCES = {"float64": 1e-5, "float32": 1e-5, "float16": 2.0**-8, "bfloat16": 2.0**-5}
"""Largest difference of a tensor, relative to its norm, by its type of fewer bits."""

SHOWN = 15

Key = tuple[int, int, str, str]
"""Step, call of the model, phase, operation."""

PHASES = ("forward", "backward", "gradient", "weight")

Array = NDArray[np.float32]


@dataclass(frozen=True)
class RecordedPart:
    """A tensor of a rank, and what is known of its place in the whole."""

    rank: int
    values: Array
    about: dict[str, Any]


@dataclass(frozen=True)
class Difference:
    """A tensor that both have."""

    key: Key
    difference: float
    allowed: float
    ranks: tuple[int, ...]

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
    """

    names: tuple[str, str]
    compared: tuple[Difference, ...]
    untold: tuple[str, ...]
    unlike: tuple[str, ...]

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
        step, call, phase, operation = first.key
        where = f"Step {step + 1}" + (f", call {call + 1}" if phase in PHASES[:2] else "")
        ranks = f" on ranks {', '.join(map(str, first.ranks))}" if len(first.ranks) > 1 else ""
        return (
            f"{where}: the first tensor of {self.names[1]} that differs from {self.names[0]} is "
            f"{_WORDS[phase]} {operation}{ranks}, by {first.difference:.1e}; {first.allowed:.1e} "
            f"is allowed.{rest}"
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
            "first": None
            if first is None
            else {
                "step": first.key[0],
                "call": first.key[1],
                "phase": first.key[2],
                "operation": first.key[3],
                "difference": first.difference,
                "allowed": first.allowed,
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
        for (step, call, phase), found in list(groups.items())[:SHOWN]:
            worst = max(found, key=lambda one: one.difference / one.allowed)
            numbers = [str(step + 1), str(call + 1), phase, str(len(found))]
            yield [*numbers, f"{worst.difference:.1e}", worst.key[3]]

    def _repr_html_(self) -> str:
        return f"{html_table(COLUMNS, list(self._rows()))}<p>{escape(self.verdict)}</p>"


_WORDS = {
    "forward": "the output of",
    "backward": "the gradient from",
    "gradient": "the gradient of",
    "weight": "the weight",
}


def compare(one: str | Path, other: str | Path) -> RecordingComparison:
    """Compare two recordings of `mimokit.watch`: one process and several ranks, or two layouts.

    A part of a rank is placed by the placements of a DTensor, by Megatron's marks, or by its shape
    next to that of the other recording: what is smaller along one dimension is cut along it, in the
    order of the ranks.

    Raises:
        ValueError: a folder is no recording, one was cut off, or the two have different steps.
    """
    (first, steps), (second, other_steps) = _read(Path(one)), _read(Path(other))
    if steps != other_steps:
        raise ValueError(
            f"{one} has {counted(steps, 'step')}, {other} has {counted(other_steps, 'step')}; "
            "record as many steps of both."
        )
    if not first.keys() & second.keys():
        raise ValueError(
            f"{one} and {other} have no tensor in common: the first has {_listed(_names(first))}, "
            f"the second {_listed(_names(second))}; record the same model in both."
        )
    found, untold = [], []
    for key, parts in sorted(first.items(), key=lambda item: _order(item[0], item[1])):
        theirs = second.get(key)
        if theirs is None:
            continue
        difference = _compared(key, parts, theirs)
        if difference is None:
            untold.append(key[3])
        else:
            found.append(difference)
    unlike = {key[3] for key in first.keys() ^ second.keys()}
    names = str(one), str(other)
    return RecordingComparison(
        names, tuple(found), tuple(dict.fromkeys(untold)), tuple(sorted(unlike))
    )


def _read(folder: Path) -> tuple[dict[Key, list[RecordedPart]], int]:
    """Return the tensors of a recording, and its steps."""
    index = folder / WatchFile.INDEX.of_rank(0)
    if not index.is_file():
        raise ValueError(
            f"{folder} is no recording, or one that was cut off: {index.name} is missing; record "
            "again with mimokit.watch."
        )
    world = json.loads(index.read_text(encoding="utf-8"))
    found: dict[Key, list[RecordedPart]] = {}
    for rank in range(world["world_size"]):
        own = folder / WatchFile.INDEX.of_rank(rank)
        tensors = folder / WatchFile.TENSORS.of_rank(rank)
        if not own.is_file() or not tensors.is_file():
            raise ValueError(
                f"{folder} was cut off: rank {rank} of {world['world_size']} has left no whole "
                "recording; record again with mimokit.watch."
            )
        try:
            stored = load_file(tensors)
        except Exception as error:
            raise ValueError(f"{tensors} cannot be read: {error}.") from None
        for about in json.loads(own.read_text(encoding="utf-8"))["seams"]:
            key = about["step"], about["call"], about["phase"], about["operation"]
            part = RecordedPart(rank, stored[about["tensor"]], about)
            found.setdefault(key, []).append(part)
    return found, world["steps"]


def _order(key: Key, parts: Sequence[RecordedPart]) -> tuple[int, ...]:
    step, call, phase, _ = key
    place = PHASES.index(phase)
    return step, call if place < 2 else 1 << 30, place, int(parts[0].about["tensor"])


def _compared(
    key: Key, parts: Sequence[RecordedPart], theirs: Sequence[RecordedPart]
) -> Difference | None:
    """Return how far the second is from the first; None if a cut cannot be told."""
    whole = _assembled(parts, theirs)
    other = None if whole is None else _assembled(theirs, parts)
    if whole is None or other is None or whole.shape != other.shape:
        return None
    relative = _relative(whole, other)
    if key[2] == "backward":  # a loss that is a mean over the samples of a rank
        ranks = [len(one) if one[0].values.shape != whole.shape else 1 for one in (parts, theirs)]
        relative = min(relative, _relative(whole * ranks[1], other * ranks[0]))
    fewest = max(TOLERANCES.get(p.about["dtype"], 1e-5) for p in (*parts, *theirs))
    return Difference(key, relative, fewest, tuple(part.rank for part in theirs))


def _relative(whole: Array, other: Array) -> float:
    norm, distance = float(np.linalg.norm(whole)), float(np.linalg.norm(other - whole))
    relative = distance / norm if norm else (0.0 if distance == 0 else float("inf"))
    return relative if np.isfinite(relative) else float("inf")


def _assembled(parts: Sequence[RecordedPart], others: Sequence[RecordedPart]) -> Array | None:
    """Return the whole of the parts of all ranks; `others` are those of the other recording."""
    about = parts[0].about
    if "whole" in about:
        return _by_offsets(parts)
    if "share" in about:
        return _by_shares(parts)
    return _by_shapes([part.values for part in parts], _whole_shapes(others))


def _by_offsets(parts: Sequence[RecordedPart]) -> Array:
    total: Array | None = None
    summands = dict.fromkeys(tuple(part.about.get("summand", ())) for part in parts)
    for summand in summands:
        own = np.zeros(parts[0].about["whole"], np.float32)
        for part in parts:
            if tuple(part.about.get("summand", ())) == summand:
                pairs = zip(part.about["offset"], part.values.shape, strict=True)
                own[tuple(slice(start, start + size) for start, size in pairs)] = part.values
        total = own if total is None else total + own
    assert total is not None
    return total


def _by_shares(parts: Sequence[RecordedPart]) -> Array:
    """Join the shares of tensor-parallel ranks, each of which has a share of every equal part."""
    shares = {part.about["share"][0]: part for part in reversed(parts)}
    dimension, number = parts[0].about["dimension"], parts[0].about["parts"]
    pieces = [np.split(shares[rank].values, number, dimension) for rank in sorted(shares)]
    in_order = [piece[index] for index in range(number) for piece in pieces]
    return np.concatenate(in_order, dimension)


def _whole_shapes(parts: Sequence[RecordedPart]) -> set[tuple[int, ...]]:
    """Return which shape a whole tensor has, as far as one recording tells."""
    about = parts[0].about
    if "whole" in about:
        return {tuple(about["whole"])}
    if "share" in about:
        return {_by_shares(parts).shape}
    return {part.values.shape for part in parts}


def _by_shapes(values: Sequence[Array], shapes: set[tuple[int, ...]]) -> Array | None:
    own = {value.shape for value in values}
    if len(own) > 1 or len(shapes) > 1:
        return None
    (shape,), (whole,) = own, shapes
    if len(shape) != len(whole):
        return None
    larger = [n for n, (a, b) in enumerate(zip(shape, whole, strict=True)) if b > a]
    if not larger:
        return values[0] if all(np.allclose(v, values[0], 1e-4, 1e-7) for v in values) else (
            _differing(values)
        )  # fmt: skip
    if len(larger) > 1 or whole[larger[0]] != len(values) * shape[larger[0]]:
        return None
    return np.concatenate(values, larger[0])


def _differing(values: Sequence[Array]) -> Array:
    """Return, of copies that are not alike, the one that is farthest from the first."""
    return max(values, key=lambda value: float(np.abs(value - values[0]).max()))


def _names(found: dict[Key, list[RecordedPart]]) -> list[str]:
    return sorted({key[3] for key in found})


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
