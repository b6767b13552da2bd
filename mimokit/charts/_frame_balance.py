"""The load of every rank before and after frames are balanced, and what travels for it."""

from __future__ import annotations

from typing import Any

import altair as alt

from mimokit.charts import _palette
from mimokit.charts._axes import inline, layered, titled
from mimokit.planning.frames import FramePlan

MOST_BARS = 64
"""Ranks up to which each has a bar; beyond, ranks are sorted by their load and drawn as lines."""
BEFORE, AFTER = "as read", "balanced"


def frame_balance(plan: FramePlan) -> alt.LayerChart:
    """Return the load of every rank, as its frames are read and as they are balanced.

    Args:
        plan: a plan of frames with homes, the ranks that read them.

    Raises:
        ValueError: the frames have no homes.
    """
    traffic = plan.traffic()
    ranks = plan.num_ranks
    before, after = traffic.sum(axis=1).tolist(), list(plan.load_per_rank)
    mean = sum(after) / ranks
    rows = [*_rows(BEFORE, before, ranks), *_rows(AFTER, after, ranks)]
    few = ranks <= MOST_BARS
    base = alt.Chart(inline(rows)).encode(
        y=alt.Y("load:Q", title="load", stack=None),
        color=alt.Color(
            "frames:N",
            title=None,
            sort=[BEFORE, AFTER],
            scale=alt.Scale(
                domain=[BEFORE, AFTER], range=[_palette.tint(_palette.MUTED, 0.5), _palette.LINE]
            ),
            legend=alt.Legend(orient="top"),
        ),
        tooltip=["rank:N", "frames:N", alt.Tooltip("load:Q", format=",.4g")],
    )
    if few:
        marks = base.mark_bar().encode(
            x=alt.X("rank:O", title="rank", axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("frames:N", sort=[BEFORE, AFTER]),
        )
    else:
        marks = base.mark_line().encode(x=alt.X("place:Q", title="ranks, by their load"))
    average = (
        alt.Chart(inline([{"mean": mean}]))
        .mark_rule(color=_palette.INK, strokeDash=[4, 3])
        .encode(y="mean:Q")
    )
    return titled(
        layered(marks, average),
        "Frames per rank",
        _subtitle(plan, before, mean),
        f"Load of {ranks} ranks before and after frames are balanced",
        width=max(240, min(14 * ranks, 720)),
        height=200,
    )


def _rows(frames: str, loads: list[float], ranks: int) -> list[dict[str, Any]]:
    order = sorted(range(ranks), key=lambda rank: -loads[rank])
    places = {rank: place for place, rank in enumerate(order)}
    return [
        {"rank": rank, "place": places[rank], "frames": frames, "load": loads[rank]}
        for rank in range(ranks)
    ]


def _subtitle(plan: FramePlan, before: list[float], mean: float) -> str:
    if not mean:
        return "no frames"
    return (
        f"the slowest rank has {max(before) / mean:.2f} times the mean as read, "
        f"{plan.makespan / mean:.2f} balanced; {plan.moved:.0%} of the load travels"
    )
