"""Layouts that are pinned: each follows the model and the batch that are edited later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mimokit_widgets.planner.draft import Draft
from mimokit_widgets.planner.edits import with_value
from mimokit_widgets.planner.paths import NETWORKS, PREDICTION, Path, value_at

SHARED: tuple[Path, ...] = (("data",), NETWORKS, PREDICTION)
"""What is edited for all layouts alike."""


@dataclass(frozen=True)
class Pin:
    """A layout that others are compared with.

    Attributes:
        layout: as it was pinned.
        beside: what stood in the fields then.
    """

    layout: Draft
    beside: Draft

    def followed_by(self, draft: Draft) -> Draft:
        """Return the layout with the edits of model and batch that led to what stands there now."""
        layout = self.layout
        for section in SHARED:
            before, now = (value_at(each.content, section) for each in (self.beside, draft))
            for path, value in _edits(before, now, section):
                layout = with_value(layout, path, value)
        return layout


def _edits(before: Any, now: Any, path: Path) -> Iterator[tuple[Path, object]]:
    """Yield each field that differs, with its new value; None where it is gone."""
    if before == now:
        return
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        yield path, now
        return
    for key in dict.fromkeys((*before, *now)):
        yield from _edits(before.get(key), now.get(key), (*path, str(key)))
