"""Runs to explore on a page without a kernel and without a network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimokit.analysis import Runs
from mimokit.analysis.two_runs import pair_of
from mimokit.charts import _palette
from mimokit.charts.browser.bundle import joined_module, styles_of
from mimokit.charts.browser.saved_view import saved_view
from mimokit.charts.runs_view.content import RunsContent, runs_content
from mimokit.charts.runs_view.details import run_details, run_figures
from mimokit.charts.runs_view.difference import run_difference

if TYPE_CHECKING:
    from mimokit.prediction.task import HardwareSource

HERE = Path(__file__).parent
MOST_TOLD = 12
"""Runs of which a page holds all that is known."""
MOST_FIGURES = 40
"""Runs of which a page holds where a step goes and the work of the ranks."""


def runs_view(
    runs: Runs,
    baseline: str | None = None,
    metric: str | None = None,
    hardware: HardwareSource | None = None,
) -> str:
    """Return HTML with runs to explore.

    Of long and many runs each point of a curve is a mean of several iterations, and the view says
    so. The best runs are told of in full.

    Args:
        hardware: as in `mimokit.analysis.many_runs.predicted_if_known`.
    """
    content = runs_content(runs, baseline, metric)
    pair = pair_of(runs, content.chosen)
    content = content.thinned()
    names = [run["name"] for run in content.about["runs"]]
    return saved_runs(
        view_state(content)
        | {
            "_difference": run_difference(runs, pair),
            "_figures": run_figures(runs, names[:MOST_FIGURES], hardware),
            "_details": {name: run_details(runs, name) for name in names[:MOST_TOLD]},
        }
    )


def saved_runs(state: Mapping[str, Any], still: str = "") -> str:
    """Return the view of a state as HTML; `still` is for a page without scripts."""
    return saved_view(joined_module(HERE / "saved.js"), runs_styles(), state, still=still)


def runs_styles() -> str:
    """Return the style sheet of a view of runs."""
    return styles_of(HERE / "runs.css")


def view_state(content: RunsContent) -> dict[str, Any]:
    """Return what a view of runs asks of its model at first."""
    return {
        "_about": content.about,
        "_curves": content.curves,
        "_figures": {},
        "_details": {},
        "_difference": {},
        "_colors": {"line": _palette.LINE, "accent": _palette.ACCENT},
        "_zoomed": [],
        "marks": [],
        "shown": content.shown,
        "selected": "",
        "metric": content.about["metric"],
        "baseline": content.about["baseline"],
    }
