"""Patterns of a fault: what a wrong tensor is instead of the right one, in words."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mimokit.experiment.culprit.whole import Array, OnRank, assembled
from mimokit.planning.seams import Floats

CLOSE = 1e-3
"""Relative difference below which a wrong tensor is taken for what a pattern says."""


def kind_of(
    whole: Array, parts: Sequence[OnRank], sizes: Mapping[str, int], stale: Floats | None = None
) -> str:
    """Return a sentence's end about a tensor that differs; empty if it has no pattern.

    Args:
        sizes: parallel sizes and the number of micro-batches, by their names.
        stale: the tensor as it was one step before.
    """
    found = assembled(whole, parts)
    for words in _patterns(whole, parts, found, sizes, stale):
        return words
    return ""


def _patterns(
    whole: Array,
    parts: Sequence[OnRank],
    found: Floats,
    sizes: Mapping[str, int],
    stale: Floats | None,
) -> Iterator[str]:
    right = whole.values
    if np.isnan(found).all():
        yield "no rank has it"
        return
    if np.isnan(found).any():
        rows = int(np.isnan(found).any(1).sum())
        yield f"{rows} of its {len(found)} rows are not complete on any rank"
        return
    if not np.isfinite(found).all():
        yield "it is not finite"
        return
    if not found.any():
        yield "it is 0"
        return
    if stale is not None and _close(found, stale):
        yield "it is what it was before the update"
        return
    yield from _copies(whole, parts)
    factor = float((found * right).sum() / max((right * right).sum(), 1e-300))
    if _close(found, factor * right):
        yield f"it is {factor:.4g} times what it should be{_named(factor, sizes)}"
    yield from _places(whole, parts)
    yield from _shifts(found, right)
    rows = np.abs(found - right).max(1) > CLOSE * np.abs(right).max()
    if 0 < rows.sum() < len(rows) / 2:
        samples = sorted(set(whole.samples[rows].tolist()))
        yield f"only {rows.sum()} of its {len(rows)} rows differ, of {_listed('sample', samples)}"


def _copies(whole: Array, parts: Sequence[OnRank]) -> Iterator[str]:
    """Yield how copies of the same part differ from each other."""
    groups: dict[tuple[str, bytes, bytes], list[OnRank]] = {}
    for part in parts:
        groups.setdefault((part.share, part.rows.tobytes(), part.columns.tobytes()), []).append(
            part
        )
    for group in groups.values():
        first = group[0]
        if len(group) == 1 or all(_close(part.values, first.values) for part in group[1:]):
            continue
        right = whole.values[np.ix_(first.rows, first.columns)]
        ranks = _listed("rank", [part.rank for part in group])
        unlike = _distinct(group)
        together = np.sum([part.values for part in unlike], axis=0)
        if _close(together, right):
            yield f"{ranks} hold summands of it that were not added up"
        elif _close(together / len(unlike), right):
            yield f"{ranks} hold different values, of which it is the mean"
        else:
            wrong = [part.rank for part in group if not _close(part.values, right)]
            yield f"{ranks} should hold the same; {_listed('rank', wrong)} hold something else"
        return


def _distinct(group: Sequence[OnRank]) -> list[OnRank]:
    found: list[OnRank] = []
    for part in group:
        if not any(_close(part.values, other.values) for other in found):
            found.append(part)
    return found


def _places(whole: Array, parts: Sequence[OnRank]) -> Iterator[str]:
    """Yield which rank holds the part of another."""
    for part, other in itertools.permutations(parts, 2):
        if part.values.shape != other.values.shape:
            continue
        own = whole.values[np.ix_(part.rows, part.columns)]
        of_other = whole.values[np.ix_(other.rows, other.columns)]
        if not _close(own, of_other) and _close(part.values, of_other):
            yield f"rank {part.rank} holds the part of rank {other.rank}"
            return


def _shifts(found: Floats, right: Floats) -> Iterator[str]:
    for axis, what in ((0, "rows"), (1, "columns")):
        for places in (1, -1):
            if _close(found, np.roll(right, places, axis)):
                yield f"its {what} are shifted by {places}"
                return
        if _close(found, np.flip(right, axis)):
            yield f"its {what} are in reverse order"
            return


def _named(factor: float, sizes: Mapping[str, int]) -> str:
    """Return which sizes are such a factor, or its inverse."""
    for name, size in sizes.items():
        for value, words in ((size, name), (1 / size, f"1 / {name}")):
            if size > 1 and abs(factor / value - 1) < CLOSE:
                return f", which is {words}"
    return ""


def _close(one: Floats, other: Floats) -> bool:
    scale = np.abs(other).max(initial=0.0)
    return bool(scale > 0 and np.abs(one - other).max() <= CLOSE * scale)


def _listed(what: str, numbers: Sequence[int]) -> str:
    text = ", ".join(map(str, numbers))
    return f"{what} {text}" if len(numbers) == 1 else f"{what}s {text}"
