"""`RunsView`: runs to explore, as a table with eyes and charts that follow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import traitlets

from mimokit.analysis import Runs, load_runs
from mimokit.analysis.run_folders import Paths
from mimokit.analysis.two_runs import pair_of
from mimokit.charts.runs_view.content import MOST_SHOWN, runs_content
from mimokit.charts.runs_view.details import run_details, run_figures
from mimokit.charts.runs_view.difference import run_difference
from mimokit.charts.runs_view.page import runs_styles, saved_runs, view_state
from mimokit.tables import Section
from mimokit_widgets._widget import PersistentWidget

if TYPE_CHECKING:
    from mimokit.prediction.task import HardwareSource


class WithFolder(Protocol):
    """A sweep or its result, as `mimokit.experiment.sweep` returns them."""

    @property
    def directory(self) -> Any:
        """The results folder."""


class RunsView(PersistentWidget, entry="runs_view.js"):
    """Runs to explore.

    It begins with what makes one run slower than another: the baseline, and the run that is looked
    at, or else the best. Each run has an eye in the table; medians with intervals, losses and their
    difference from the baseline's, the parts of a step, stragglers and memory show those whose eyes
    are open. A drag across a chart zooms all of them. A click on a run tells where its time went,
    with its plan and its trace.

        RunsView("runs/run_20260102_030405")
        RunsView(["runs/a", "runs/b"], metric="total_time")

    The files of ranks are read when a run is first shown. A saved notebook keeps the view alive,
    with what was read until then.

    Attributes:
        runs: as tables, see `mimokit.analysis.Runs`.
        shown: names of the runs with open eyes; at first the best 12.
        selected: the run that is told of, or "".
        metric: what the medians in the table are of.
        baseline: the run that the others are compared with.
        marks: iterations that are marked in all charts.
    """

    _css = runs_styles()

    shown = traitlets.List(traitlets.Unicode()).tag(sync=True)
    selected = traitlets.Unicode("").tag(sync=True)
    metric = traitlets.Unicode("").tag(sync=True)
    baseline = traitlets.Unicode("").tag(sync=True)
    marks = traitlets.List(traitlets.Int(min=0)).tag(sync=True)
    _about = traitlets.Dict().tag(sync=True)
    _curves = traitlets.Bytes(b"").tag(sync=True)
    _figures = traitlets.Dict().tag(sync=True)
    _details = traitlets.Dict().tag(sync=True)
    _difference = traitlets.Dict().tag(sync=True)
    _zoomed = traitlets.List(traitlets.Int(min=0)).tag(sync=True)
    _colors = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        source: Runs | Paths | WithFolder,
        *,
        baseline: str | None = None,
        metric: str | None = None,
        hardware: HardwareSource | None = None,
    ) -> None:
        """Show runs.

        Args:
            source: folders of runs, of sweeps or of results, or globs, one or several; a sweep or
                its result; or runs that were loaded.
            baseline, metric: as in `mimokit.analysis.compare`.
            hardware: to predict the steps for, which are drawn as lines: the file that
                `mimokit.calibrate` wrote on the machine of the runs, or a GPU. None takes the
                `runtime.hardware` of each run, and draws none without it.

        Raises:
            RunFolderError: the paths have no run.
            ValueError: the baseline or the metric does not exist; or no run that is shown can be
                predicted for the hardware.
        """
        self._source = source
        self._hardware = hardware
        self.runs = _loaded(source)
        self._content = runs_content(self.runs, baseline, metric)
        first = {
            "_figures": self._figures_of(self._content.shown),
            "_difference": run_difference(self.runs, pair_of(self.runs, self._content.chosen)),
        }
        super().__init__(**view_state(self._content) | first)
        kept = ["shown", "selected", "metric", "baseline", "marks", "_zoomed"]
        self.observe(self._saved.follow, kept)

    def reload(self) -> None:
        """Read the folders again, for runs that have gone on or are new."""
        self.runs = _loaded(self._source)
        self._content = content = runs_content(self.runs)
        names = {run["name"] for run in content.about["runs"]}
        new = [name for name in content.shown if name not in self._figures]
        shown = [name for name in self.shown if name in names]
        shown += [name for name in new if len(shown) < MOST_SHOWN]
        figures = self._figures_of(shown)
        with self.hold_sync():
            self.baseline = self.baseline if self.baseline in names else content.about["baseline"]
            self.metric = self.metric or content.about["metric"]
            self.selected = self.selected if self.selected in names else ""
            self.shown, self._figures, self._details = shown, figures, {}
            self._curves, self._about = content.curves, content.about
        if self.selected:
            self._look_at(self.selected)
        self._compare()
        self._saved.follow()

    @traitlets.validate("shown")  # type: ignore[untyped-decorator]
    def _known(self, proposal: Mapping[str, Any]) -> list[str]:
        for name in proposal["value"]:
            self.runs[name]  # raises a sentence that names what there is
        return list(proposal["value"])

    @traitlets.observe("selected")  # type: ignore[untyped-decorator]
    def _look(self, change: Mapping[str, Any]) -> None:
        self._look_at(change["new"])

    @traitlets.observe("baseline", "selected")  # type: ignore[untyped-decorator]
    def _compare(self, _: object = None) -> None:
        """Compare the run that is looked at with the baseline, else those that are named first."""
        known = {self.baseline, self.selected} <= self.runs.folders.keys()
        pair = (self.baseline, self.selected) if known and self.baseline != self.selected else None
        if pair is not None or self.selected == "":
            chosen = pair_of(self.runs, self._content.chosen)
            self._difference = run_difference(self.runs, pair or chosen)

    def _look_at(self, name: str) -> None:
        if name and name in self.runs.folders and name not in self._details:
            self._details = {**self._details, name: run_details(self.runs, name)}

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        if content.get("type") == "figures":
            names = [name for name in content["names"] if name in self.runs.folders]
            self._figures = {**self._figures, **self._figures_of(names)}
            self._saved.follow()
        elif content.get("type") == "look":
            self._look_at(str(content["name"]))

    def _figures_of(self, names: Sequence[str]) -> dict[str, Any]:
        return run_figures(self.runs, names, self._hardware)

    def _in_html(self) -> str:
        content = self._content.thinned()
        kept = {name: getattr(self, name) for name in view_state(content) if name in self.traits()}
        kept |= {"_about": content.about, "_curves": content.curves}
        names = Section("", (content.about["heading"],), [(name,) for name in self.shown])
        return saved_runs(kept, still=names.to_html())


def _loaded(source: Runs | Paths | WithFolder) -> Runs:
    if isinstance(source, Runs):
        return source
    folder = getattr(source, "directory", None)
    return load_runs(source if folder is None else folder)  # type: ignore[arg-type]
