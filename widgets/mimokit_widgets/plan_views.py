"""Views of one plan: `RankMap`, `BatchSplit` and `TrafficMap`."""

import os
from collections.abc import Mapping
from typing import Any

import traitlets

from mimokit.config import ExperimentConfig
from mimokit.config_files import load_experiment_config
from mimokit.config_files.loading import config_from_mapping
from mimokit.planning.layout import plan_layout
from mimokit.planning.report import PlannedLayout
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.traffic import Traffic, traffic_of_plan
from mimokit_widgets._widget import Answers, ByIdentity, PersistentWidget, asked
from mimokit_widgets.planner.draft import RANKS_PER_NODE
from mimokit_widgets.view_models.batch_lanes import batch_lanes
from mimokit_widgets.view_models.rank_cells import rank_cells
from mimokit_widgets.view_models.rank_details import details_of_ranks, rank_details
from mimokit_widgets.view_models.sample_walk import sample_walk, walks_of_samples
from mimokit_widgets.view_models.traffic_blocks import ALL, blocks_of_kinds, traffic_blocks

Shown = LayoutPlan | ExperimentConfig | Mapping[str, Any] | str | os.PathLike[str]


class PlanView(PersistentWidget, styles=("shared.css",)):
    """A picture of a plan; setting `plan` draws another.

    Attributes:
        plan: the plan. It can be set to all that the constructor takes.
        config: its config, None where only a plan was given.
        ranks_per_node: ranks that share a machine.
    """

    plan = ByIdentity()
    ranks_per_node = traitlets.Int(RANKS_PER_NODE, min=1)
    _picture = traitlets.Dict().tag(sync=True)
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
        self.observe(self._draw, ["plan", "ranks_per_node"])
        self.observe(self._saved.follow, ["plan"])

    def open(self) -> None:
        """Connect to the browser, after the first picture is drawn."""
        self._draw()
        super().open()

    @traitlets.validate("plan")  # type: ignore[untyped-decorator]
    def _planned(self, proposal: Mapping[str, Any]) -> PlannedLayout:
        value = proposal["value"]
        if isinstance(value, LayoutPlan):
            self.config = None
            return value if isinstance(value, PlannedLayout) else PlannedLayout.of(value)
        if isinstance(value, ExperimentConfig):
            config = value
        elif isinstance(value, Mapping):
            config = config_from_mapping(value)
        else:
            config = load_experiment_config(value)
        plan = PlannedLayout.of(plan_layout(config))
        self.config = config
        return plan

    def _still(self) -> str:
        return str(self.plan._repr_html_())

    def _draw(self, _: object = None) -> None:
        raise NotImplementedError


class RankMap(PlanView, entry="rank_map.js"):
    """Which rank holds which shard of which module; a click on a rank shows its details.

    Attributes:
        selected: the rank that is looked at, or None.
    """

    selected = traitlets.Int(None, allow_none=True)

    def _draw(self, _: object = None) -> None:
        if self.selected is not None and not 0 <= self.selected < self.plan.world_size:
            self.selected = None
        with self.hold_sync():
            picture, cells = rank_cells(self.plan, self.ranks_per_node)
            self._picture = {**picture, "numbers": cells}
            self._look()

    @traitlets.observe("selected")  # type: ignore[untyped-decorator]
    def _look(self, _: object = None) -> None:
        rank = self.selected
        if rank is None or not 0 <= rank < self.plan.world_size:
            self._looked_at = {}
        else:
            self._looked_at = rank_details(self.plan, rank, self.ranks_per_node, self.config)

    def _answers(self) -> Answers:
        return {
            asked(type="select", rank=rank): {"_looked_at": details}
            for rank, details in details_of_ranks(self.plan, self.ranks_per_node, self.config)
        }

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        if content.get("type") == "select":
            rank = content["rank"]
            self.selected = None if rank is None else int(rank)


class BatchSplit(PlanView, entry="batch_split.js"):
    """The micro-batch as a row of samples, below it every module's replicas with their slices.

    Attributes:
        sample: the sample that is followed from module to module, or None.
        backward: follow its gradient back instead.
    """

    sample = traitlets.Int(None, allow_none=True)
    backward = traitlets.Bool(False)

    def _draw(self, _: object = None) -> None:
        samples = self.plan.batch.samples_per_microbatch
        if self.sample is not None and not 0 <= self.sample < samples:
            self.sample = None
        with self.hold_sync():
            self._picture = batch_lanes(self.plan)
            self._follow()

    @traitlets.observe("sample", "backward")  # type: ignore[untyped-decorator]
    def _follow(self, _: object = None) -> None:
        sample = self.sample
        if sample is None or not 0 <= sample < self.plan.batch.samples_per_microbatch:
            self._looked_at = {}
        else:
            self._looked_at = sample_walk(
                self.plan, sample, backward=self.backward, config=self.config
            )

    def _answers(self) -> Answers:
        return {
            asked(type="sample", sample=sample, backward=backward): {"_looked_at": walk}
            for sample, backward, walk in walks_of_samples(self.plan, self.config)
        }

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        if content.get("type") == "sample":
            sample = content["sample"]
            self.backward = bool(content["backward"])
            last = self.plan.batch.samples_per_microbatch - 1
            self.sample = None if sample is None else min(max(0, int(sample)), last)


class TrafficMap(PlanView, entry="traffic_map.js"):
    """Bytes per step between ranks or nodes as a matrix, per kind of traffic.

    Attributes:
        kind: bridge, pipeline, tensor, context or data, or "all".
        by_node: sum over the ranks of a node, also where single ranks would fit.
    """

    kind = traitlets.Unicode(ALL)
    by_node = traitlets.Bool(False)

    def __init__(self, config: Shown, **options: Any) -> None:
        """Show the traffic of a layout.

        Args:
            config: a config, a mapping, the path of a YAML file or `preset:NAME`; a plan alone
                does not say how large its modules are.

        Raises:
            ConfigError: the config has problems.
            TypeError: a plan was given.
        """
        self._known: tuple[LayoutPlan, Traffic] | None = None
        super().__init__(config, **options)
        self.observe(self._draw, ["kind", "by_node"])

    def _draw(self, _: object = None) -> None:
        if self.config is None:
            raise TypeError("TrafficMap takes a config: a plan does not say how large modules are.")
        if self._known is None or self._known[0] is not self.plan:
            self._known = (self.plan, traffic_of_plan(self.config, self.plan))
        picture, matrix = traffic_blocks(
            self._known[1], self.ranks_per_node, self.kind, by_node=self.by_node
        )
        self._picture = {**picture, "numbers": matrix}

    def _answers(self) -> Answers:
        assert self._known is not None, "what is shown has been drawn"
        return {
            asked(type="traffic", kind=kind, by_node=by_node): {
                "_picture": {**picture, "numbers": matrix},
            }
            for kind, by_node, (picture, matrix) in blocks_of_kinds(
                self._known[1], self.ranks_per_node
            )
        }

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        if content.get("type") == "traffic":
            self.kind, self.by_node = str(content["kind"]), bool(content["by_node"])
