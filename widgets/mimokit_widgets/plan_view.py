"""What widgets that show one plan have in common."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import traitlets

from mimokit.config import ExperimentConfig, load_experiment_config
from mimokit.config.files.loading import config_from_mapping
from mimokit.planning.layout import plan as plan_of
from mimokit.planning.types import LayoutPlan
from mimokit_widgets._widget import ByIdentity, PersistentWidget
from mimokit_widgets.modules import joined_styles
from mimokit_widgets.planner.draft import RANKS_PER_NODE

Shown = LayoutPlan | ExperimentConfig | Mapping[str, Any] | str | os.PathLike[str]


class PlanView(PersistentWidget):
    """A picture of a plan; setting `plan` draws another.

    Attributes:
        plan: the plan. It can be set to all that the constructor takes.
        config: its config, None where only a plan was given.
        ranks_per_node: ranks that share a machine.
    """

    _css = joined_styles("shared.css")

    plan = ByIdentity()
    ranks_per_node = traitlets.Int(RANKS_PER_NODE, min=1)
    _picture = traitlets.Dict().tag(sync=True)
    _numbers = traitlets.Bytes(b"").tag(sync=True)
    _looked_at = traitlets.Dict().tag(sync=True)

    def __init__(self, plan: Shown, **options: Any) -> None:
        """Show a plan.

        Args:
            plan: a plan, or what makes one: a config, a mapping in the form of a YAML file, the
                path of one, or `preset:NAME`.
            options: traits, `ranks_per_node` say.

        Raises:
            ConfigError: the config has problems.
        """
        self.config: ExperimentConfig | None = None
        super().__init__(plan=plan, **options)
        self.on_msg(self._on_message)
        self.observe(self._draw, ["plan", "ranks_per_node"])

    def open(self) -> None:
        """Connect to the browser, which shall never see a view without its picture."""
        self._draw()
        super().open()

    @traitlets.validate("plan")  # type: ignore[untyped-decorator]
    def _planned(self, proposal: Mapping[str, Any]) -> LayoutPlan:
        given = proposal["value"]
        if isinstance(given, LayoutPlan):
            self.config = None
            return given
        if isinstance(given, ExperimentConfig):
            config = given
        elif isinstance(given, Mapping):
            config = config_from_mapping(given)
        else:
            config = load_experiment_config(given)
        plan = plan_of(config)
        self.config = config
        return plan

    def _in_html(self) -> str:
        return str(self.plan._repr_html_())

    @traitlets.observe("plan")  # type: ignore[untyped-decorator]
    def _save(self, _: object) -> None:
        self._saved.follow()

    def _draw(self, _: object = None) -> None:
        """Bring the picture up to the plan."""
        raise NotImplementedError

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        """Do what the browser asks for."""
