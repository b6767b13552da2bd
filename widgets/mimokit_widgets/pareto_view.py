"""`ParetoView`: what a search found, and a click that picks a layout or loads it into a planner."""

from collections.abc import Mapping
from typing import Any

import traitlets

from mimokit.layout_search import SearchResult
from mimokit_widgets._widget import ByIdentity, PersistentWidget
from mimokit_widgets.layout_planner import LayoutPlanner
from mimokit_widgets.view_models.found_layouts import found_layouts, layouts_shown, place_of

PICKED = {"verbs": ("Pick", "Picked")}
"""What the buttons say without a planner to load into."""


class ParetoView(PersistentWidget, entry="pareto_view.js", styles=("shared.css", "found.css")):
    """The Pareto front of a search and its best layouts; a click picks one.

        view = ParetoView(mimokit.search(model, gpus=256, workload=workload))
        view.picked.layout

    With a planner a click loads the layout into it, as one edit, so that its undo goes back:

        planner = LayoutPlanner()
        ParetoView(result, planner)

    Attributes:
        result: what was found.
        planner: what layouts are loaded into, or None.
        picked: the prediction of the layout that was clicked last, or None.
    """

    picked = ByIdentity(read_only=True)
    _found = traitlets.Dict().tag(sync=True)
    _loaded = traitlets.Int(-1).tag(sync=True)

    def __init__(
        self, result: SearchResult, planner: LayoutPlanner | None = None, **options: Any
    ) -> None:
        """Show what a search found.

        Args:
            result: of `mimokit.search`.
            planner: to load layouts into.
        """
        self.result = result
        self.planner = planner
        self._shown = layouts_shown(result)
        words = PICKED if planner is None else {}
        super().__init__(_found={**found_layouts(result), **words}, **options)
        if planner is not None:
            planner.observe(self._follow, ["plan"])

    def _still(self) -> str:
        return self.result._repr_html_()

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        if content.get("type") != "take_found" or not 0 <= int(content["index"]) < len(self._shown):
            return
        picked = self._shown[int(content["index"])]
        if self.planner is not None:
            self.planner.load_layout(picked.layout, self.result)
        self.set_trait("picked", picked)
        self._follow()

    def _follow(self, _: object = None) -> None:
        if self.planner is not None:
            taken = self.planner.loaded_layout
        else:
            taken = None if self.picked is None else self.picked.layout
        self._loaded = place_of(taken, self._shown)
