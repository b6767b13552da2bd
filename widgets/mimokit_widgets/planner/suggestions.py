"""The number nearest to a refused one with which the layout is accepted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mimokit.config import ConfigError, config_from_mapping
from mimokit_widgets.planner.draft import Draft
from mimokit_widgets.planner.edits import with_value
from mimokit_widgets.planner.limits import limit_problems
from mimokit_widgets.planner.paths import WORLD_FIELDS, Path, value_at

FARTHEST = 16
"""Every number so near is tried; beyond, powers of two."""
MOST = 2**20


def nearest_number(draft: Draft, path: Path) -> int | None:
    """Return the nearest number for the field at a path with which every check passes, or None."""
    given = getattr(draft, path[0]) if path[0] in WORLD_FIELDS else value_at(draft.content, path)
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= MOST:
        return None
    return next((each for each in _around(given) if _accepted(draft, path, each)), None)


def _around(given: int) -> Iterator[int]:
    near = {given + step for step in range(-FARTHEST, FARTHEST + 1)}
    numbers = near | {2**power for power in range(MOST.bit_length())}
    yield from sorted(
        (each for each in numbers if each > 0 and each != given),
        key=lambda each: (abs(each - given), -each),
    )


def _accepted(draft: Draft, path: Path, number: int) -> bool:
    changed = with_value(draft, path, number)
    if any(limit_problems(changed)):
        return False
    world: Any = changed.world_size
    try:
        config_from_mapping(changed.content, world_size=world)
    except ConfigError:
        return False
    return True
