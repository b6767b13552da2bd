"""`WeightMap`: which slices of weights files are on which rank, for layouts to choose."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import traitlets

from mimokit.axes import LAYOUT_FIELDS, Axis
from mimokit.config import ConfigError
from mimokit.planning.report.weights import sections
from mimokit.planning.weights import WeightDirectory, WeightPlan, WeightPlanner, read_directory
from mimokit.planning.weights.directory import refused
from mimokit.tables import html_sections
from mimokit.units import counted, shown
from mimokit_widgets._alive import Answers, alive, asked
from mimokit_widgets._widget import ByIdentity, PersistentWidget
from mimokit_widgets.modules import joined_modules, joined_styles
from mimokit_widgets.view_models.weight_slices import weight_picture

AXES = (Axis.TENSOR, Axis.PIPELINE)
FIELDS = tuple(LAYOUT_FIELDS[axis] for axis in AXES)
MOST_OFFERED = (64, 32)
"""Sizes up to which powers of two can be chosen; `ask` takes any."""
MOST_RANKS = 128
MOST_SAVED = 16
"""Ranks up to which a saved page holds the picture of every layout that can be chosen."""
ENTRY = "weight_map.js"


class WeightMap(PersistentWidget):
    """Which heads, rows of the vocabulary and slices of the files are on which rank.

        view = WeightMap("DIR", tensor_parallel=4)
        view.ask(pipeline_parallel=2)   # from code to the view
        view.plan                       # charts.weight_map(view.plan) draws it

    A rank that is pointed at shows its slices, a tensor shows its ranks; a click keeps them. What
    cannot be planned leaves everything at the last plan, and `problem` says why. No tensor is read.

    Attributes:
        plan: which bytes of which file every rank holds.
        problem: why the sizes have no plan, as a sentence; empty if they have one.
        selected: the rank that a click or code has selected, or None.
    """

    _esm = joined_modules(ENTRY)
    _css = joined_styles("shared.css", "weight_map.css")
    _in_words = "which slices of weights files are on which rank"

    plan = ByIdentity(None, read_only=True)
    problem = traitlets.Unicode("", read_only=True)
    selected = traitlets.Int(None, allow_none=True).tag(sync=True)
    _picture = traitlets.Dict().tag(sync=True)
    _numbers = traitlets.Bytes(b"").tag(sync=True)

    def __init__(
        self,
        directory: WeightDirectory | str | os.PathLike[str],
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
        **options: Any,
    ) -> None:
        """Show the files of a weights directory.

        Args:
            directory: with config.json and safetensors files, or what `read_directory` returned.

        Raises:
            ConfigError: as `plan_weights`, or there are more than 128 ranks.
        """
        self._stored = (
            directory if isinstance(directory, WeightDirectory) else read_directory(directory)
        )
        self._sizes = dict(zip(FIELDS, (tensor_parallel, pipeline_parallel), strict=True))
        self._offered = _offered(WeightPlanner(self._stored))
        self._drawn = self._planned(), dict(self._sizes)
        super().__init__(**options)
        self.set_trait("plan", self._drawn[0])
        self.on_msg(self._on_message)

    def open(self) -> None:
        """Connect to the browser, after the first picture is drawn."""
        self._draw()
        super().open()

    def ask(self, **sizes: int) -> None:
        """Change tensor_parallel or pipeline_parallel.

        Raises:
            TypeError: another name.
        """
        for name in sizes:
            if name not in FIELDS:
                raise TypeError(f"WeightMap has no field {name!r}; it has {', '.join(FIELDS)}.")
        self._sizes.update(sizes)
        problem = ""
        try:
            self._drawn = self._planned(), dict(self._sizes)
        except ConfigError as error:
            problem = error.problems[0].sentence
        with self.hold_trait_notifications():
            self.set_trait("problem", problem)
            self.set_trait("plan", self._drawn[0])
        self._draw()
        self._saved.follow()

    @traitlets.validate("selected")  # type: ignore[untyped-decorator]
    def _known_rank(self, proposal: Mapping[str, Any]) -> int | None:
        rank: int | None = proposal["value"]
        return rank if rank is not None and 0 <= rank < len(self._drawn[0].ranks) else None

    def _planned(self) -> WeightPlan:
        for name, size in self._sizes.items():
            if isinstance(size, bool) or not isinstance(size, int):
                what = f"{name} is {shown(size)}; it must be a whole number"
                raise refused("Layout", name, size, what)
        tensor, pipeline = self._sizes.values()
        if tensor * pipeline > MOST_RANKS:
            what = f"there are {counted(tensor * pipeline, 'rank')}; the view draws {MOST_RANKS}"
            raise refused("Layout", "ranks", tensor * pipeline, what)
        return WeightPlanner(self._stored, tensor, pipeline).plan()

    def _draw(self) -> None:
        plan = self._drawn[0]
        picture, numbers = self._pictured(plan, self._drawn[1], self._sizes)
        with self.hold_sync():
            if self.selected is not None and self.selected >= len(plan.ranks):
                self.selected = None
            self._numbers = numbers
            self._picture = {**picture, "problem": self.problem}

    def _pictured(
        self, plan: WeightPlan, drawn: Mapping[str, int], sizes: Mapping[str, int]
    ) -> tuple[dict[str, Any], bytes]:
        """Return the picture of a plan, and the bytes of its files.

        Args:
            drawn: the sizes of the plan.
            sizes: what was asked for, which may have no plan.
        """
        picture, numbers = weight_picture(plan, self._stored)
        fields = [
            {
                "name": name,
                "label": axis.label,
                "value": sizes[name],
                "offered": sorted({*offered, drawn[name], sizes[name]}),
            }
            for axis, name, offered in zip(AXES, FIELDS, self._offered, strict=True)
        ]
        return {**picture, "fields": fields}, numbers

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        if content.get("type") == "weights":
            self.ask(**{name: int(content["sizes"][name]) for name in FIELDS})
        elif content.get("type") == "select":
            self.selected = content.get("rank")

    def _in_html(self) -> str:
        said = f"<div>{escape(self.problem)}</div>" if self.problem else ""
        tables = html_sections(sections(self.plan))
        return alive(ENTRY, self, self._answers(), said + tables)

    def _answers(self) -> Answers:
        """Return what a saved page is asked: ranks, and layouts of few ranks."""
        ranks = [None, *range(MOST_RANKS)]
        answers = {asked(type="select", rank=rank): {"selected": rank} for rank in ranks}
        return {**answers, **dict(self._layouts())}

    def _layouts(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for tensor, pipeline in itertools.product(*self._offered):
            sizes = dict(zip(FIELDS, (tensor, pipeline), strict=True))
            if tensor * pipeline > MOST_SAVED:
                continue
            try:
                plan = WeightPlanner(self._stored, tensor, pipeline).plan()
            except ConfigError:
                continue  # the page says that it has no answer
            picture, numbers = self._pictured(plan, sizes, sizes)
            message = asked(type="weights", sizes=sizes)
            yield message, {"_numbers": numbers, "_picture": {**picture, "problem": ""}}


def _offered(planner: WeightPlanner) -> list[list[int]]:
    """Return sizes to choose from: powers of two up to the heads, and up to the layers."""
    net = planner.family.stacked
    mosts = (min(net.heads, MOST_OFFERED[0]), min(net.layers, MOST_OFFERED[1]))
    return [[size for size in (2**n for n in range(7)) if size <= most] for most in mosts]
