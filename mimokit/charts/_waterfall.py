"""What makes the steps of one run longer than those of another."""

import altair as alt

from mimokit.analysis import RunDifference
from mimokit.charts import _axes, _palette
from mimokit.charts._axes import MILLISECONDS, MOST_RANKS, inline, layered, records, titled

WIDE = 110
"""Pixels for the name of a part."""
SIDE_COLORS = {"longer": _palette.ACCENT, "shorter": _palette.LINE, "together": _palette.MUTED}


def waterfall(difference: RunDifference) -> alt.VConcatChart | alt.LayerChart:
    """Return the parts of a difference one after another, and below them those of each rank.

    The parts begin with the largest, and the last bar is their sum. Of more than 64 ranks those are
    shown that differ most; there are none where the ranks of the runs are not the same.

    Args:
        difference: of `mimokit.analysis.difference_of_runs`.
    """
    rows, at = [], 0.0
    for part, seconds in difference.largest:
        side = "longer" if seconds > 0 else "shorter"
        rows.append(_bar(part, at, at + seconds, seconds, side))
        at += seconds
    rest = difference.seconds - at
    if abs(rest) > 1e-3 * difference.seconds:
        rows.append(
            _bar("all else", at, difference.seconds, rest, "longer" if rest > 0 else "shorter")
        )
    whole = difference.seconds
    rows.append(_bar(f"{difference.slow} − {difference.fast}", 0.0, whole, whole, "together"))
    names = [str(row["part"]) for row in rows]
    y = alt.Y("part:N", title=None, sort=names, axis=alt.Axis(labelLimit=320))
    base = alt.Chart(inline(rows)).encode(y=y)
    bars = base.mark_bar(height=alt.RelativeBandSize(0.7)).encode(
        x=alt.X("start:Q", title=f"milliseconds of a {difference.unit}", axis=alt.Axis(grid=True)),
        x2="stop:Q",
        color=_axes.colored("side", SIDE_COLORS),
        tooltip=["part:N", alt.Tooltip("ms:Q", format="+,.2f")],
    )
    words = base.mark_text(align="left", dx=5, color=_palette.TEXT).encode(
        x=alt.X("end:Q"), text=alt.Text("ms:Q", format="+,.3~r")
    )
    drawn = layered(bars, words).properties(height=alt.Step(22))
    heading = f"Why {difference.slow} is slower than {difference.fast}"
    described = f"Waterfall of the difference between two runs: {difference.headline}"
    subtitle = "medians of the mean rank, the largest part first"
    if difference.ranks.empty:
        return titled(drawn, heading, subtitle, described)
    both: alt.VConcatChart = alt.vconcat(drawn, _by_rank(difference), spacing=18).resolve_scale(
        color="independent"
    )
    return titled(both, heading, f"{subtitle}; below: rank by rank", described)


def _bar(part: str, start: float, stop: float, seconds: float, side: str) -> dict[str, object]:
    return {
        "part": part,
        "side": side,
        "ms": MILLISECONDS * seconds,
        "start": MILLISECONDS * start,
        "stop": MILLISECONDS * stop,
        "end": MILLISECONDS * max(start, stop),
    }


def _by_rank(difference: RunDifference) -> alt.Chart:
    table = difference.ranks * MILLISECONDS
    shown = table.abs().sum(axis=1).nlargest(MOST_RANKS).index
    most = float(table.abs().to_numpy().max()) or 1.0
    long = table.loc[sorted(shown)].rename_axis("rank").reset_index()
    cells = records(long.melt("rank", var_name="part", value_name="ms").round(3))
    colors = alt.Scale(domain=[-most, 0.0, most], range=list(_palette.DIVERGING))
    gradient = alt.Legend(
        type="gradient", orient="top", title="ms longer", format="+.3~r", gradientLength=160,
        gradientThickness=8, offset=6,
    )  # fmt: skip
    chart: alt.Chart = (
        alt.Chart(inline(cells))
        .mark_rect()
        .encode(
            x=alt.X("part:N", title=None, sort=list(table.columns), axis=alt.Axis(labelAngle=0)),
            y=_axes.ranks(),
            color=alt.Color("ms:Q", scale=colors, legend=gradient),
            tooltip=["rank:O", "part:N", alt.Tooltip("ms:Q", format="+,.2f")],
        )
        .properties(height=alt.Step(16), width=alt.Step(WIDE))
    )
    return chart
