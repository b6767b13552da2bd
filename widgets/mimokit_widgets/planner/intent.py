"""Edits that mean more than one field: all modules alike, the next valid number."""

from collections.abc import Callable, Iterator

from mimokit_widgets.planner.draft import Draft
from mimokit_widgets.planner.edits import end_to_end, set_field
from mimokit_widgets.planner.paths import SIZES, Path, modules_at

FARTHEST = 32
"""Every number so near is tried; beyond, powers of two times the number."""
MOST_DOUBLINGS = 14


def set_sizes(draft: Draft, path: Path, text: str) -> Draft:
    """Set the field at a path, of all modules for ALL_MODULES."""
    if tuple(path[:2]) != SIZES or len(path) != 4:
        return set_field(draft, path, text)
    for name in modules_at(draft.content, path):
        draft = set_field(draft, (*path[:2], name, *path[3:]), text)
    return draft


def stepped(
    draft: Draft,
    start: int,
    by: int,
    *,
    doubling: bool,
    change: Callable[[int], Draft | None],
    fits: Callable[[Draft], bool],
) -> Draft | None:
    """Return the draft with the next number up or down with which every check passes, or None.

    Where modules follow each other on separate ranks, they still do.

    Args:
        change: returns the draft with a number, None where it does not go with what is held.
        fits: whether every check passes.
    """
    in_line = end_to_end(draft) == draft
    for number in _numbers(start, by, doubling):
        changed = change(number)
        if changed is None:
            continue
        for candidate in (changed, *([end_to_end(changed)] if in_line else [])):
            if fits(candidate):
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
    value = draft.value_at(path)
    if value is None:
        return otherwise
    return value if isinstance(value, int) and not isinstance(value, bool) else None
