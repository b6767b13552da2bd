"""`TrafficMap`: who talks to whom, in bytes per step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import traitlets

from mimokit.planning.traffic import Traffic, traffic_of_plan
from mimokit.planning.types import LayoutPlan
from mimokit_widgets.modules import joined_modules
from mimokit_widgets.plan_view import PlanView, Shown
from mimokit_widgets.view_models.traffic_blocks import ALL, traffic_blocks


class TrafficMap(PlanView):
    """Bytes per step between ranks or nodes as a matrix, per kind of traffic.

    Attributes:
        kind: bridge, pipeline, tensor, context or data, or "all".
        by_node: sum over the ranks of a node, also where single ranks would fit.
    """

    _esm = joined_modules("traffic_map.js")

    kind = traitlets.Unicode(ALL)
    by_node = traitlets.Bool(False)

    def __init__(self, config: Shown, **options: Any) -> None:
        """Show the traffic of a layout.

        Args:
            config: a config, a mapping, the path of a YAML file or `preset:NAME`; a plan alone
                does not say how large its modules are.
            options: traits.

        Raises:
            ConfigError: the config has problems.
            TypeError: a plan was given.
        """
        if isinstance(config, LayoutPlan):
            raise TypeError("TrafficMap takes a config: a plan does not say how large modules are.")
        self._known: tuple[LayoutPlan, Traffic] | None = None
        super().__init__(config, **options)
        self.observe(self._draw, ["kind", "by_node"])

    def _draw(self, _: object = None) -> None:
        if self.config is None:
            raise TypeError("TrafficMap takes a config: a plan does not say how large modules are.")
        if self._known is None or self._known[0] is not self.plan:
            self._known = (self.plan, traffic_of_plan(self.config, self.plan))
        with self.hold_sync():
            self._picture, self._numbers = traffic_blocks(
                self._known[1], self.ranks_per_node, self.kind, by_node=self.by_node
            )

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        if content.get("type") == "traffic":
            self.kind, self.by_node = str(content["kind"]), bool(content["by_node"])
