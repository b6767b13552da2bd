"""Several runs next to each other: losses, medians, scaling, and what was planned for them."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from mimokit.analysis import Comparison
from mimokit.charts import _axes, _palette
from mimokit.charts._axes import MILLISECONDS, inline, layered, need, records, titled
from mimokit.units import counted

BASELINE, DIFFERENT, SAME = "baseline", "differs from it", "not significant"
VERDICT_COLORS = {
    BASELINE: _palette.MUTED,
    DIFFERENT: _palette.LINE,
    SAME: _palette.tint(_palette.LINE, 0.6),
}
SIDE_COLORS = {"measured": _palette.LINE, "planned": _palette.ACCENT}
MODES = ("homogeneous", "colocated", "heterogeneous")
MOST_POINTS = 200
"""Points of a line of losses; of longer runs each is the mean of successive iterations."""


def losses(table: pd.DataFrame) -> alt.Chart:
    """Return the loss over tokens, a line per run.

    The loss of a layout is that of one process, so lines of the same model, data and seed lie on
    each other; a line that departs shows another batch size, another seed or a fault.

    Args:
        table: from `mimokit.analysis.loss_over_tokens`.
    """
    need(table, "losses", "run", "tokens", "loss")
    names = list(dict.fromkeys(map(str, table["run"])))
    color, dash = _axes.named_lines("run", names)
    rows = [
        row for _, of_run in table.groupby("run", observed=True) for row in records(_thin(of_run))
    ]
    lines: alt.Chart = (
        alt.Chart(inline(rows))
        .mark_line(strokeWidth=1.8, opacity=0.85)
        .encode(
            x=_axes.over("tokens", str(table.attrs.get("over", "tokens")), "~s"),
            y=_axes.amount("loss", "loss", "~g", alt.Scale(zero=False)),
            color=color,
            strokeDash=dash,
            tooltip=["run:N", "tokens:Q", alt.Tooltip("loss:Q", format=".4f")],
        )
    )
    subtitle = "mean over the unmasked tokens of a step"
    return titled(lines, "Loss", subtitle, f"Loss over tokens of {counted(len(names), 'run')}")


def _thin(table: pd.DataFrame) -> pd.DataFrame:
    every = -(-len(table) // MOST_POINTS)
    curve = table[["tokens", "loss"]].reset_index(drop=True)
    means = curve.groupby(curve.index // every).mean()
    return means.assign(run=str(table["run"].iloc[0]))


def compared_layouts(comparison: Comparison) -> alt.LayerChart:
    """Return a bar per name, best first, with the interval of its median as a line.

    The text at the end of a bar is the difference from the baseline; a pale bar does not differ
    significantly from it. Those without a completed run come last, with their status.
    """
    rows = [_compared(row, comparison) for row in records(comparison.table)]
    base = alt.Chart(inline(rows)).encode(
        y=_axes.named_rows("name", [row["name"] for row in rows]),
        tooltip=[
            "name:N",
            "runs:Q",
            *(alt.Tooltip(f"{name}:Q", format=",.4~g") for name in ("median", "low", "high")),
            alt.Tooltip("against:N", title="against the baseline"),
        ],
    )
    bars = base.mark_bar(height=alt.RelativeBandSize(0.7)).encode(
        x=alt.X("median:Q", title=comparison.metric, axis=alt.Axis(format="~s", tickCount=6)),
        color=_axes.colored("verdict", VERDICT_COLORS),
    )
    intervals = base.mark_rule(color=_palette.TEXT, strokeWidth=2).encode(x="low:Q", x2="high:Q")
    texts = base.mark_text(align="left", dx=6, color=_palette.TEXT, fontSize=11).encode(
        x="end:Q", text="against:N"
    )
    return titled(
        layered(bars, intervals, texts),
        f"Median {comparison.metric}",
        f"lines: {comparison.confidence:.0%} intervals; texts: against {comparison.baseline}",
        f"Median {comparison.metric} of {counted(len(rows), 'layout')} with intervals",
        height=alt.Step(24),
    )


def _compared(row: dict[str, Any], comparison: Comparison) -> dict[str, Any]:
    is_baseline = row["name"] == comparison.baseline
    change = "" if is_baseline else f"{row['change']:+.1%}"
    status = comparison.unfinished.get(row["name"], "")
    high = row["median"] if pd.isna(row["high"]) else max(row["high"], row["median"])
    return {
        **{name: row[name] for name in ("name", "runs", "median", "low", "high")},
        "end": high,
        "verdict": BASELINE if is_baseline else DIFFERENT if row["significant"] else SAME,
        "against": ", ".join(filter(None, (change, status))),
    }


def scaling(table: pd.DataFrame, metric: str = "tokens_per_sec") -> alt.LayerChart:
    """Return throughput over ranks, a point per run with its interval, a line per mode.

    The dashed line is ideal scaling: the throughput per rank of the best run on the fewest ranks,
    times the ranks.

    Args:
        table: from `mimokit.analysis.scaling_table`.
        metric: what its medians are, for the axis.
    """
    need(table, "scaling", "name", "mode", "world_size", "median", "low", "high", "efficiency")
    rows = records(table)
    modes = [mode for mode in MODES if mode in set(table["mode"])]
    sizes = sorted({int(row["world_size"]) for row in rows})
    best = table[table["world_size"] == sizes[0]]["median"].max() / sizes[0]
    ideal = alt.Chart(inline([{"ranks": size, "ideal": best * size} for size in sizes]))
    base = alt.Chart(inline(rows)).encode(
        x=_ranks("world_size", sizes),
        color=_axes.colored("mode", _palette.mode_colors(modes), "circle"),
        tooltip=[
            "name:N",
            "mode:N",
            alt.Tooltip("world_size:Q", title="ranks"),
            alt.Tooltip("median:Q", format=",.4~g"),
            alt.Tooltip("efficiency:Q", format=".1%", title="of ideal scaling"),
        ],
    )
    layers = layered(
        ideal.mark_line(strokeDash=[4, 4], color=_palette.MUTED).encode(
            x=_ranks("ranks", sizes), y=_axes.amount("ideal", metric, "~s")
        ),
        base.mark_line(strokeWidth=1.4).encode(y="max(median):Q", tooltip=alt.value(None)),
        base.mark_rule(strokeWidth=2).encode(y="low:Q", y2="high:Q"),
        base.mark_point(filled=True, size=60, opacity=1).encode(y="median:Q"),
    )
    subtitle = "points: runs with intervals; lines: best of a mode; dashed: ideal"
    description = f"Median {metric} over {counted(len(sizes), 'number')} of ranks"
    return titled(layers, f"Scaling of {metric}", subtitle, description)


def _ranks(column: str, sizes: list[int]) -> alt.X:
    return alt.X(
        f"{column}:Q",
        title="ranks",
        axis=alt.Axis(values=sizes, grid=False, format="d"),
        scale=alt.Scale(zero=True, nice=False, padding=10),
    )


def planned_and_measured(table: pd.DataFrame) -> alt.LayerChart:
    """Return the median step of each run as a bar, and its prediction as a mark with its band.

    Args:
        table: from `mimokit.analysis.planned_against_measured`.
    """
    seconds = ("planned", "planned_low", "planned_high", "measured", "low", "high")
    need(table, "planned_and_measured", "run", *seconds, "error")
    rows = [
        {**row, **{name: row[name] * MILLISECONDS for name in seconds}} for row in records(table)
    ]
    base = alt.Chart(inline(rows)).encode(
        y=_axes.named_rows("run", [row["run"] for row in rows]),
        tooltip=[
            "run:N",
            *(alt.Tooltip(f"{name}:Q", format=".1f") for name in seconds),
            alt.Tooltip("error:Q", format="+.1%"),
        ],
    )
    color = _axes.colored("side", SIDE_COLORS)
    measured, planned = (
        base.transform_calculate(side=f"'{side}'").encode(color=color) for side in SIDE_COLORS
    )
    axis = alt.X("measured:Q", title="milliseconds in a step")
    layers = layered(
        measured.mark_bar(height=alt.RelativeBandSize(0.6), opacity=0.55).encode(x=axis),
        base.mark_rule(color=_palette.TEXT, strokeWidth=2).encode(x="low:Q", x2="high:Q"),
        planned.mark_rule(strokeWidth=1.5, opacity=1).encode(
            x="planned_low:Q", x2="planned_high:Q"
        ),
        planned.mark_tick(thickness=3, opacity=1).encode(x="planned:Q"),
    )
    how = table.attrs.get("how", "predicted from the config")
    return titled(
        layers,
        "Planned and measured step",
        f"{how}; dark lines: intervals of the medians",
        f"Predicted and measured step time of {counted(len(rows), 'run')}",
        height=alt.Step(24),
    )
