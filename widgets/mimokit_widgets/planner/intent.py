"""Edits that mean more than one field: sizes that trade, all modules alike, the next valid number.

A module's ranks are TP × CP × PP × DP. While they are held, what one size takes another gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mimokit.axes import CONFIG_FIELDS, Axis
from mimokit.config import ConfigError
from mimokit.config_files import config_from_mapping
from mimokit_widgets.planner.draft import Draft
from mimokit_widgets.planner.edits import end_to_end, set_field, with_value
from mimokit_widgets.planner.limits import limit_problems
from mimokit_widgets.planner.paths import (
    ALL_MODULES,
    SIZES,
    WORLD_FIELDS,
    Path,
    mapping_at,
    value_at,
)

TRADED = tuple(
    CONFIG_FIELDS[axis] for axis in (Axis.DATA, Axis.TENSOR, Axis.CONTEXT, Axis.PIPELINE)
)
"""Sizes that trade, the first to give first."""
FARTHEST = 32
"""Every number so near is tried; beyond, powers of two times the number."""
MOST_DOUBLINGS = 14

Held = Mapping[str, int]
"""Module -> the ranks that it keeps."""


def accepted(draft: Draft) -> bool:
    """Return whether every check passes."""
    if any(limit_problems(draft)):
        return False
    world: Any = draft.world_size
    try:
        config_from_mapping(draft.content, world_size=world)
    except ConfigError:
        return False
    return True


def set_sizes(draft: Draft, path: Sequence[str], text: str, held: Held) -> Draft:
    """Set the field at a path, of all modules for ALL_MODULES; held modules keep their ranks."""
    for name in _modules(draft, path):
        one = (*path[:2], name, *path[3:]) if name else tuple(path)
        before, draft = draft, set_field(draft, one, text)
        if name in held and one[-1] in TRADED:
            draft = _traded(before, draft, name, one[-1], held[name])
    return draft


def _modules(draft: Draft, path: Sequence[str]) -> tuple[str, ...]:
    """Return the modules whose size is at a path; "" for a field of no module."""
    if tuple(path[:2]) != SIZES or len(path) != 4:
        return ("",)
    return tuple(mapping_at(draft.content, SIZES)) if path[2] == ALL_MODULES else (path[2],)


def _traded(before: Draft, draft: Draft, name: str, changed: str, ranks: int) -> Draft:
    """Return the draft in which other sizes make up for the one that changed.

    One of them gives alone where it can, else all do; a size that does not divide the ranks, or
    is not worked out yet, stays as it was typed.
    """
    sizes = mapping_at(draft.content, (*SIZES, name))
    value: Any = sizes.get(changed)
    old = mapping_at(before.content, (*SIZES, name))
    others = {field: old.get(field) or 1 for field in TRADED if field != changed}
    numbers = (value, *others.values())
    if old.get(TRADED[0]) is None or not all(isinstance(number, int) for number in numbers):
        return draft
    if not value or value < 1 or ranks % value:
        return draft
    for field, size in _shared(others, ranks // value).items():
        draft = with_value(draft, (*SIZES, name, field), size)
    return draft


def _shared(sizes: Mapping[str, int], product: int) -> dict[str, int]:
    """Return sizes with another product, as few of them changed as possible."""
    for giver in sizes:
        rest = math.prod(size for field, size in sizes.items() if field != giver)
        if product % rest == 0:
            return {**sizes, giver: product // rest}
    shared, left = {}, product
    for field in (*list(sizes)[1:], next(iter(sizes))):
        shared[field] = math.gcd(sizes[field], left)
        left //= shared[field]
    first = next(iter(sizes))
    return {**shared, first: shared[first] * left}


def stepped(
    draft: Draft,
    start: int,
    by: int,
    *,
    doubling: bool,
    change: Callable[[int], Draft],
    fits: Callable[[Draft], bool],
) -> Draft | None:
    """Return the draft with the next number up or down with which every check passes, or None.

    Where modules follow each other on separate ranks, they still do.

    Args:
        change: returns the draft with a number.
        fits: whether every check passes.
    """
    in_line = end_to_end(draft) == draft
    for number in _numbers(start, by, doubling):
        for candidate in (changed := change(number), end_to_end(changed) if in_line else None):
            if candidate is not None and fits(candidate):
                return candidate
    return None


def _numbers(start: int, by: int, doubling: bool) -> Iterator[int]:
    doublings = range(1, MOST_DOUBLINGS)
    if by > 0:
        near = () if doubling else range(start + 1, start + FARTHEST + 1)
        far = [max(1, start) << power for power in doublings]
        yield from near
        yield from (number for number in far if number not in near)
        return
    if not doubling:
        yield from range(start - 1, max(0, start - FARTHEST - 1), -1)
    halves = [start >> power for power in doublings]
    nearest = 1 if doubling else FARTHEST + 1
    yield from (number for number in halves if 0 < number <= start - nearest)


def standing_number(draft: Draft, path: Path, otherwise: int) -> int | None:
    """Return the whole number in a field; what an empty one stands for; None for a text."""
    field = path[0]
    value = getattr(draft, field) if field in WORLD_FIELDS else value_at(draft.content, path)
    if value is None:
        return otherwise
    return value if isinstance(value, int) and not isinstance(value, bool) else None
