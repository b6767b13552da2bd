"""`WeightMap`: which slices of weights files are on which rank, for layouts to choose."""

import os
from collections.abc import Mapping
from html import escape
from typing import Any

import traitlets
from IPython.display import DisplayHandle, display
from ipywidgets import HTML, Dropdown, HBox, VBox

from mimokit import charts
from mimokit.axes import LAYOUT_FIELDS, Axis
from mimokit.charts._renderer import mime_bundle
from mimokit.config import ConfigError
from mimokit.planning.weights import WeightDirectory, WeightPlan, WeightPlanner, read_directory
from mimokit.planning.weights.directory import refused
from mimokit.units import counted, shown
from mimokit_widgets._widget import ByIdentity, defer_shell_choice, suppress_missing_widget

AXES = (Axis.TENSOR, Axis.PIPELINE)
FIELDS = tuple(LAYOUT_FIELDS[axis] for axis in AXES)
MOST_OFFERED = (64, 32)
"""Sizes up to which powers of two can be chosen; `ask` takes any."""
MOST_RANKS = 128
CLASS, SAVED = "mimokit-weight-map", "mimokit-weight-map-saved"
HIDE = suppress_missing_widget(saved=f".{SAVED}", live=f".{CLASS}")


class WeightMap(VBox):  # type: ignore[misc]
    """`charts.weight_map` below the sizes of a layout, which can be chosen.

        view = WeightMap("DIR", tensor_parallel=4)
        view.ask(pipeline_parallel=2)   # from code to the view
        view.plan

    What cannot be planned leaves everything at the last plan, and `problem` says why. No tensor is
    read. The chart stays in a saved notebook.

    Attributes:
        plan: which bytes of which file every rank holds.
        problem: why the sizes have no plan, as a sentence; empty if they have one.
    """

    plan = ByIdentity(None, read_only=True)
    problem = traitlets.Unicode("", read_only=True)

    def __init__(
        self,
        directory: WeightDirectory | str | os.PathLike[str],
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
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
        self._handles: list[DisplayHandle] = []
        plan = self._planned()
        offered = _offered(WeightPlanner(self._stored))
        self._fields = {
            name: Dropdown(
                options=sorted({*sizes, self._sizes[name]}),
                value=self._sizes[name],
                description=axis.label,
            )
            for axis, name, sizes in zip(AXES, FIELDS, offered, strict=True)
        }
        self._words = HTML()
        super().__init__([HBox(list(self._fields.values())), self._words])
        self.add_class(CLASS)
        self.set_trait("plan", plan)
        for name, field in self._fields.items():
            field.observe(self._chosen(name), "value")
            defer_shell_choice(field.comm)

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
            plan = self._planned()
        except ConfigError as error:
            plan, problem = self.plan, error.problems[0].sentence
        self.set_trait("problem", problem)
        self._words.value = "" if not problem else f'<div role="alert">{escape(problem)}</div>'
        for name, size in sizes.items():
            field = self._fields[name]
            field.options = sorted({*field.options, size})
            field.value = size
        if plan is not self.plan:
            self.set_trait("plan", plan)
            for handle in self._handles:
                handle.update(self._bundle(), raw=True)

    def _chosen(self, name: str) -> Any:
        def take(change: Mapping[str, Any]) -> None:
            if change["new"] != self._sizes[name]:
                self.ask(**{name: change["new"]})

        return take

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

    def _bundle(self) -> dict[str, Any]:
        # Its parts were validated as they were made: a redraw need not validate the whole again.
        return mime_bundle(charts.weight_map(self.plan).to_dict(validate=False))

    def _ipython_display_(self) -> None:
        display(self._repr_mimebundle_(), raw=True)
        handle = display(self._bundle(), raw=True, display_id=True)
        display({"text/html": f'<div class="{SAVED}"></div><style>{HIDE}</style>'}, raw=True)
        if handle is not None:
            self._handles.append(handle)


def _offered(planner: WeightPlanner) -> list[list[int]]:
    net = planner.family.stacked
    mosts = (min(net.heads, MOST_OFFERED[0]), min(net.layers, MOST_OFFERED[1]))
    return [[size for size in (2**n for n in range(7)) if size <= most] for most in mosts]
