"""How the throughput of runs grows with their ranks."""

import altair as alt
import pandas as pd

from mimokit.charts import _axes, _palette
from mimokit.charts._axes import inline, layered, need, records, titled
from mimokit.units import counted

MODES = ("homogeneous", "colocated", "heterogeneous")


def scaling(table: pd.DataFrame, metric: str = "tokens_per_sec") -> alt.LayerChart:
    """Return throughput over ranks, a point per run with its interval, a line per mode.

    The dashed line is ideal scaling: the throughput per rank of the best run on the fewest ranks,
    times the ranks.
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
