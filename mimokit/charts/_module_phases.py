"""Where the time of a step goes, run by run."""

from __future__ import annotations

import altair as alt
import pandas as pd

from mimokit.charts import _axes, _palette
from mimokit.charts._axes import inline, need, records
from mimokit.charts._phases import phase_colors
from mimokit.step_kinds import MODULE_PHASES, REMAINDER, CommunicationPart, Phase

_MILLISECONDS = 1e3
_ORDER = (
    *(phase.column for phase in (*MODULE_PHASES, Phase.OPTIMIZER, Phase.DATA, Phase.COMMUNICATION)),
    CommunicationPart.WAITING.column,
    REMAINDER,
)
"""The columns of parts, in the order of stacking."""


def module_phases(parts: pd.DataFrame) -> alt.Chart:
    """Return a stacked bar per run: forward and backward of every module, and the other parts.

    Args:
        parts: from `mimokit.analysis.time_parts`.
    """
    need(parts, "module_phases", "run", "part", "module", "column", "seconds", "share")
    colors = _colors(parts)
    order = list(colors)
    rows = [
        {**row, "order": order.index(row["part"]), "ms": row["seconds"] * _MILLISECONDS}
        for row in records(parts[parts["seconds"] > 0])
    ]
    names = list(dict.fromkeys(row["run"] for row in records(parts)))
    present = {row["part"] for row in rows}
    chart: alt.Chart = (
        alt.Chart(inline(rows))
        .mark_bar()
        .encode(
            x=alt.X("sum(ms):Q", title="milliseconds in a step", stack="zero"),
            y=alt.Y("run:N", title=None, sort=names, axis=alt.Axis(labelLimit=320)),
            color=_axes.parts("part", [part for part in order if part in present], colors),
            order="order:Q",
            tooltip=[
                "run:N",
                "part:N",
                alt.Tooltip("ms:Q", format=".1f"),
                alt.Tooltip("share:Q", format=".1%"),
            ],
        )
        .properties(
            height=alt.Step(22),
            title=alt.TitleParams(
                "Where a step goes",
                subtitle="median of a step, mean over ranks; light: forward, full: backward",
            ),
            description=f"Parts of a step of {len(names)} runs, by module and phase",
        )
    )
    return chart


def _colors(parts: pd.DataFrame) -> dict[str, str]:
    """Return part -> colour, in the order of stacking."""
    known = parts[["part", "module", "column"]].drop_duplicates()
    known = known.sort_values("column", key=lambda column: column.map(_ORDER.index), kind="stable")
    of_modules = known["column"].isin([phase.column for phase in MODULE_PHASES])
    modules = list(dict.fromkeys(known.loc[of_modules, "module"]))
    colors = {key.strip(): color for key, color in phase_colors(modules).items()}
    colors[CommunicationPart.WAITING] = _palette.WAITING
    return {
        row["part"]: colors[f"{row['module']} {row['column'].removesuffix('_time')}".strip()]
        for row in records(known)
    }
