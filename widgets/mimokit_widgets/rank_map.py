"""`RankMap`: every rank as a cell in its node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import traitlets

from mimokit_widgets.modules import joined_modules
from mimokit_widgets.plan_view import PlanView
from mimokit_widgets.view_models.rank_cells import rank_cells
from mimokit_widgets.view_models.rank_details import rank_details


class RankMap(PlanView):
    """Which rank holds which shard of which module; a click on a rank tells all about it.

    Attributes:
        selected: the rank that is looked at, or None.
    """

    _esm = joined_modules("rank_map.js")

    selected = traitlets.Int(None, allow_none=True)

    def _draw(self, _: object = None) -> None:
        if self.selected is not None and not 0 <= self.selected < self.plan.world_size:
            self.selected = None
        with self.hold_sync():
            self._picture, self._numbers = rank_cells(self.plan, self.ranks_per_node)
            self._look()

    @traitlets.observe("selected")  # type: ignore[untyped-decorator]
    def _look(self, _: object = None) -> None:
        rank = self.selected
        if rank is None or not 0 <= rank < self.plan.world_size:
            self._looked_at = {}
        else:
            self._looked_at = rank_details(self.plan, rank, self.ranks_per_node, self.config)

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        if content.get("type") == "select":
            rank = content["rank"]
            self.selected = None if rank is None else int(rank)
