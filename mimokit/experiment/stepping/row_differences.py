"""How rows differ from those that should have come, in words."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mimokit.experiment.patterns import CLOSE, close, factor_of, moves_of
from mimokit.planning.seams import Floats
from mimokit.units import counted, listed

FARTHEST = 8
"""Shift of columns that is looked for; rows are looked for everywhere."""
ROUNDED = 2e-2
"""Relative difference of numbers that have been rounded to 8 bits of precision or more."""
MOST_NAMED = 4


@dataclass(frozen=True)
class RowSource:
    """Where rows come from.

    Attributes:
        rows: all rows from which the right ones are cut, [rows, …].
    """

    rows: Floats
    first: int
    unit: str = "row"
    offset: int = 0

    def named(self, start: int, stop: int) -> str:
        """Return rows in words: "rows 7–11"."""
        start, last = start + self.offset, stop - 1 + self.offset
        return f"{self.unit} {start}" if start == last else f"{self.unit}s {start}–{last}"


def how_it_differs(right: Floats, came: Floats, source: RowSource) -> str:
    """Return what came instead of the right rows, as a sentence's end; both are [rows, …]."""
    if right.shape != came.shape:
        moved = _from_elsewhere(right, came, source)
        return moved or f"{list(came.shape)} came instead of {list(right.shape)}"
    odd = ~np.isfinite(came)
    if odd.any() and np.isfinite(right).all():
        which = _rows_text(np.asarray(odd.reshape(len(odd), -1).any(1)), source)
        many = int(odd.sum())
        return f"{counted(many, 'value')} of {which} {'are' if many > 1 else 'is'} not finite"
    if not came.any():
        return "only zeros came"
    return _from_elsewhere(right, came, source) or _changed(right, came, source)


def _from_elsewhere(right: Floats, came: Floats, source: RowSource) -> str:
    """Return which other rows came; empty if these are not rows of the source."""
    start = _place_of(came, source.rows)
    if start is not None and (start, len(came)) != (source.first, len(right)):
        wanted = source.named(source.first, source.first + len(right))
        return f"{source.named(start, start + len(came))} came instead of {wanted}"
    if right.shape != came.shape or len(right) < 2:
        return ""
    if np.array_equal(came, right[::-1]):
        last = source.named(source.first + len(right) - 1, source.first + len(right))
        first = source.named(source.first, source.first + 1)
        return f"the {source.unit}s are in reverse order: {last} came for {first}"
    for distance in _rolls(right, came):
        by = distance if distance <= len(right) // 2 else distance - len(right)
        place = source.first + (-distance) % len(right)
        return f"the {source.unit}s are rolled by {by}: {source.named(place, place + 1)} came first"
    return _mixed(right, came, source)


def _place_of(came: Floats, rows: Floats) -> int | None:
    if came.shape[1:] != rows.shape[1:] or not len(came):
        return None
    same = (rows == came[0]).reshape(len(rows), -1).all(1)
    for start in np.flatnonzero(same):
        if np.array_equal(rows[start : start + len(came)], came):
            return int(start)
    return None


def _rolls(right: Floats, came: Floats) -> list[int]:
    same = (right == came[0]).reshape(len(right), -1).all(1)
    distances = [int(-place % len(right)) for place in np.flatnonzero(same)]
    return [n for n in distances if n and np.array_equal(np.roll(right, n, 0), came)]


def _mixed(right: Floats, came: Floats, source: RowSource) -> str:
    place = {row.tobytes(): number for number, row in reversed(list(enumerate(source.rows)))}
    places = [place.get(row.tobytes()) for row in came]
    if any(number is None for number in places):
        return ""
    wrong = np.flatnonzero((right != came).reshape(len(right), -1).any(1))
    pairs = [
        f"{source.unit} {int(places[at] or 0) + source.offset} came for "
        f"{source.first + int(at) + source.offset}"
        for at in wrong[:MOST_NAMED]
    ]
    more = len(wrong) - len(pairs)
    return f"the {source.unit}s are in another order: {', '.join(pairs)}" + (
        f" and {more} more" if more else ""
    )


def _changed(right: Floats, came: Floats, source: RowSource) -> str:
    factor = factor_of(came, right)
    if factor is not None and abs(factor - 1) > CLOSE:
        return "its sign is turned" if abs(factor + 1) < 1e-9 else f"it is scaled by {factor:.4g}"
    wrong = (right != came).reshape(len(right), -1).any(1)
    if 0 < wrong.sum() < len(wrong):
        part = RowSource(source.rows, source.first, source.unit, source.offset)
        how = _changed(right[wrong], came[wrong], part)
        verb = "differ" if wrong.sum() > 1 else "differs"
        return f"only {_rows_text(wrong, source)} {verb}: {how}"
    for moved in moves_of(came, right, FARTHEST):
        what = _axis_name(moved.axis, right.ndim)
        return (
            f"its {what} are rolled by {moved.places}"
            if moved.places
            else f"its {what} are in reverse order"
        )
    scale = float(np.abs(right).max(initial=0.0))
    most = float(np.abs(came - right).max(initial=0.0))
    if close(came, right) or (scale and most <= ROUNDED * scale and _looks_rounded(right, came)):
        return f"its values are rounded, by up to {most / scale:.2g} of the largest"
    return f"its values differ by up to {most:.3g}, where the largest is {scale:.3g}"


def _looks_rounded(right: Floats, came: Floats) -> bool:
    return bool((np.abs(came - right) <= ROUNDED * np.abs(right) + 1e-12).all())


def _axis_name(axis: int, dimensions: int) -> str:
    if axis == 0:
        return "rows"
    return "columns" if axis == dimensions - 1 else ("lines" if axis == dimensions - 2 else "parts")


def _rows_text(wrong: NDArray[np.bool_], source: RowSource) -> str:
    places = np.flatnonzero(wrong)
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    spans = [
        source.named(source.first + int(run[0]), source.first + int(run[-1]) + 1) for run in runs
    ]
    more = len(spans) - MOST_NAMED
    named = spans[:MOST_NAMED] + ([f"{more} more"] if more > 0 else [])
    return listed(named)
