"""What is shown of single runs: where a step goes, its ranks, its plan and its trace."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from mimokit.analysis import Runs, explain, read_trace
from mimokit.analysis.many_runs import predicted_if_known
from mimokit.analysis.step_figures import StepFigures, step_figures
from mimokit.analysis.table_file import records
from mimokit.charts import _palette
from mimokit.charts.timeline.groups import drawn_timeline
from mimokit.config import ConfigError
from mimokit.planning.report import PlannedLayout
from mimokit.planning.types import LayoutPlan
from mimokit.result_files import RunFile
from mimokit.step_kinds import MODULE_PHASES, REMAINDER, CommunicationPart, Phase
from mimokit.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from mimokit.prediction.task import HardwareSource

MOST_RANKS = 256
"""Ranks of which each is a cell."""
MOST_LANES = 64
"""Ranks of a trace that are drawn."""


def run_figures(
    runs: Runs, names: Sequence[str], hardware: HardwareSource | None = None
) -> dict[str, Any]:
    """Return run -> where its median step goes and what each of its ranks works, as JSON.

    `parts` are (name, colour, seconds), as a mean over the ranks; `ranks` are (rank, seconds of
    work in the median step, share above the ranks with the same work); both are empty for a run of
    which nothing was measured. `planned` has the seconds that were predicted for its step with the
    ends of their band, or None.

    Args:
        hardware: as in `mimokit.analysis.many_runs.predicted_if_known`.
    """
    planned = _planned(runs, names, hardware)
    known = {name: step_figures(runs, name)[0] for name in names}
    tables = [figures.parts for figures in known.values() if figures is not None]
    modules = [str(name) for name in runs.runs if str(name).endswith("_ranks")]
    hues = [name.removesuffix("_ranks") for name in modules]
    colors = _part_colors(pd.concat(tables), hues) if tables else {}
    return {
        name: {**_figures(figures, colors), "planned": planned[name]}
        for name, figures in known.items()
    }


def _planned(
    runs: Runs, names: Sequence[str], hardware: HardwareSource | None
) -> dict[str, list[float] | None]:
    planned: dict[str, list[float] | None] = {}
    problem: Exception | None = None
    for name in names:
        try:
            known = predicted_if_known(runs.config(name), hardware)
        except (ConfigError, OSError, ValueError) as error:
            known, problem = None, error
        planned[name] = None if known is None else [_short(seconds) for seconds in known]
    if hardware is not None and problem is not None and not any(planned.values()):
        raise ValueError(str(problem)) from problem
    return planned


def _figures(figures: StepFigures | None, colors: Mapping[str, str]) -> dict[str, Any]:
    if figures is None:
        return {"parts": [], "ranks": []}
    seconds = dict(zip(figures.parts["part"], figures.parts["seconds"], strict=True))
    parts = [
        [part, color, _short(seconds[part])]
        for part, color in colors.items()
        if seconds.get(part, 0) > 0
    ]
    return {"parts": parts, "ranks": _work(figures)}


def _work(figures: StepFigures) -> list[list[float]]:
    """Return (rank, seconds of work, share above the median of the ranks with the same work)."""
    work = figures.ranks["work"]
    rows = []
    for peers in figures.peers:
        median = float(work.loc[peers].median())
        for rank in peers:
            seconds = float(work.loc[rank])
            rows.append([rank, _short(seconds), _short(seconds / median - 1 if median else 0.0)])
    return sorted(rows)[:MOST_RANKS]


def _short(seconds: float) -> float:
    return float(f"{seconds:.5g}") if math.isfinite(seconds) else 0.0


def run_details(runs: Runs, name: str) -> dict[str, Any]:
    """Return all that is said of one run, as JSON.

    `facts` are pairs of texts, `sentences` say where its time went, `plan` is HTML, `trace` is the
    path of its trace or empty, and `timeline` is one traced iteration as `timeline_view` makes it,
    or None.
    """
    (row,) = records(runs[name].runs)
    plan, unplanned = _plan(runs, name)
    trace = runs.folders[name] / RunFile.TRACE
    timeline, untraced = _timeline(trace, plan)
    return {
        "facts": _facts(row, trace),
        "sentences": [*explain(runs, name).sentences(), *filter(None, (unplanned, untraced))],
        "plan": "" if plan is None else str(plan._repr_html_()),
        "trace": trace.resolve().as_uri() if trace.is_file() else "",
        "timeline": timeline,
    }


def _plan(runs: Runs, name: str) -> tuple[PlannedLayout | None, str]:
    try:
        return runs.plan(name), ""
    except (ConfigError, OSError) as error:
        return None, f"Its plan is not known: {str(error).splitlines()[0]}"


def _timeline(file: Path, plan: LayoutPlan | None) -> tuple[dict[str, Any] | None, str]:
    if not file.is_file():
        return None, ""
    try:
        trace = read_trace(file)
        ranks = sorted(set(trace["rank"]))
        shown, inside = trace[trace["rank"].isin(ranks[:MOST_LANES])], read_trace(file, inside=True)
        _, drawn = drawn_timeline(shown, plan, inside=inside)
    except ValueError as error:
        return None, f"Its trace cannot be drawn: {str(error).splitlines()[0]}"
    if len(ranks) > MOST_LANES:
        drawn["sentence"] = f"Shown are the first {MOST_LANES} of {len(ranks)} ranks."
    return drawn, ""


def _facts(row: Mapping[str, Any], trace: Path) -> list[list[str]]:
    seconds, texts = row.get("seconds"), {}
    if isinstance(seconds, float) and math.isfinite(seconds):
        texts["took"] = seconds_text(seconds)
    for column in ("started", "hosts", "accelerators", "revision", "versions", "directory"):
        if isinstance(row.get(column), str):
            texts[column] = str(row[column])
    if trace.is_file():
        texts["trace"] = f"{trace.name}, {bytes_text(trace.stat().st_size)}; open it in Perfetto"
    return [[name, text] for name, text in texts.items()]


_ORDER = (
    *(phase.column for phase in (*MODULE_PHASES, Phase.OPTIMIZER, Phase.DATA, Phase.COMMUNICATION)),
    CommunicationPart.WAITING.column,
    REMAINDER,
)
"""The columns of parts, in the order of stacking."""


def _part_colors(parts: pd.DataFrame, modules: Sequence[str] = ()) -> dict[str, str]:
    known = parts[["part", "module", "column"]].drop_duplicates()
    known = known.sort_values("column", key=lambda column: column.map(_ORDER.index), kind="stable")
    of_modules = known["column"].isin([phase.column for phase in MODULE_PHASES])
    passes = _palette.pass_colors([*modules, *known.loc[of_modules, "module"]])
    colors = {**passes, **_palette.PHASE_COLORS, CommunicationPart.WAITING: _palette.WAITING}
    return {
        row["part"]: colors[f"{row['module']} {row['column'].removesuffix('_time')}".strip()]
        for row in records(known)
    }
