"""What every rank did over time; below it, what was planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import altair as alt
import pandas as pd

from mimokit.charts import _axes, _palette
from mimokit.charts._axes import MILLISECONDS, inline, layered, need, records, titled
from mimokit.step_kinds import COMPUTATIONS, Phase, StepKind
from mimokit.units import counted

MEASURED, PLANNED = "measured", "planned"
WAITING = "messages, reduction and waiting"
_WORK = tuple(map(str, COMPUTATIONS))
_CLASSES = {str(kind): str(kind.color) for kind in StepKind}


def trace_timeline(
    measured: pd.DataFrame, planned: pd.DataFrame | None = None, title: str = "One iteration"
) -> alt.LayerChart:
    """Return the steps of every rank on one axis, the planned ones below the measured ones.

    The light shade of a module is its forward pass, the full colour its backward pass.

    Args:
        measured: one iteration, from `mimokit.analysis.traced_iteration`.
        planned: from `mimokit.analysis.planned_steps`; None without a pipeline.
    """
    need(measured, "trace_timeline", "rank", "name", "module", "start", "stop")
    if planned is None:
        return _bars({MEASURED: measured}, title, f"{_length(measured):,.1f} ms, measured")
    span, plan = _length(measured[measured["name"].isin(_WORK)]), _length(planned)
    subtitle = (
        f"of two bars the upper is measured, the lower planned with the measured medians: the "
        f"pipeline takes {span:,.1f} ms, planned {plan:,.1f} ms"
    )
    return _bars({MEASURED: measured, PLANNED: planned}, title, subtitle)


def _bars(kinds: Mapping[str, pd.DataFrame], title: str, subtitle: str) -> alt.LayerChart:
    """Return a bar per rank and table, in the order of the tables; only the first is opaque."""
    rows = [row for kind, table in kinds.items() for row in _rows(table, kind)]
    waiting = _palette.tint(_palette.PHASE_COLORS["communication"], 0.6)
    modules = _modules(kinds[MEASURED])
    passes = _palette.pass_colors(modules)
    by_module = {key: passes[key] for name in modules for key in (f"{name} {p}" for p in _WORK)}
    colors = {**by_module, WAITING: waiting, **_palette.PHASE_COLORS}
    base = alt.Chart(inline(rows)).encode(
        x=_axes.clock("milliseconds"),
        x2="stop:Q",
        y=_axes.ranks(),
        yOffset=alt.YOffset("kind:N", sort=list(kinds)),
        tooltip=[
            "kind:N",
            "rank:O",
            "step:N",
            alt.Tooltip("microbatch:Q", title="micro-batch"),
            alt.Tooltip("start:Q", format=".4~g"),
            alt.Tooltip("stop:Q", format=".4~g"),
        ],
    )
    color = _axes.parts("key", rows, colors, columns=5)
    bars = base.mark_bar(stroke=_palette.PAPER, strokeWidth=0.4)
    # A scale from one kind to one opacity is NaN in Vega, and a bar of that opacity is not seen.
    shades = alt.Scale(domain=list(kinds), range=[1.0, 0.55])
    shaded = alt.Opacity("kind:N", legend=None, scale=shades)
    opacity = shaded if len(kinds) > 1 else alt.value(1.0)
    return titled(
        layered(bars.encode(color=color, opacity=opacity)),
        title,
        subtitle,
        f"Timeline of {counted(kinds[MEASURED]['rank'].nunique(), 'rank')}, {', '.join(kinds)}",
        height=alt.Step(14 if len(kinds) == 1 else 11),
    )


def _rows(table: pd.DataFrame, kind: str) -> Iterator[dict[str, Any]]:
    for row in records(table):
        microbatch = row["microbatch"]
        yield {
            "kind": kind,
            "rank": int(row["rank"]),
            "key": _key(row["name"], row["module"]),
            "step": row["name"] if pd.isna(row["module"]) else f"{row['name']} {row['module']}",
            "microbatch": None if pd.isna(microbatch) else int(microbatch),
            "start": row["start"] * MILLISECONDS,
            "stop": row["stop"] * MILLISECONDS,
        }


def _key(name: str, module: Any) -> str:
    if name in _WORK:
        return f"{module} {name}"
    color = _CLASSES.get(name, Phase.COMMUNICATION)
    return WAITING if color == Phase.COMMUNICATION else color


def _modules(measured: pd.DataFrame) -> list[str]:
    """Return the modules in the order of the plan: by first rank, then by first forward pass."""
    forward = measured[measured["name"] == "forward"]
    starts = forward.groupby("module")[["rank", "start"]].min().sort_values(["rank", "start"])
    return [str(name) for name in starts.index]


def _length(steps: pd.DataFrame) -> float:
    """Return the milliseconds from the first start to the last stop."""
    return float(steps["stop"].max() - steps["start"].min()) * MILLISECONDS
