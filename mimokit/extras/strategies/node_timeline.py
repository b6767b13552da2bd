"""When nodes compute, wait and exchange, under one strategy or several."""

from collections.abc import Iterator, Mapping
from typing import Any

import altair as alt

from mimokit.charts import _axes, _palette
from mimokit.charts._axes import inline, titled
from mimokit.extras.strategies.network import NodeBlock, StrategyTimeline
from mimokit.step_kinds import StepKind
from mimokit.units import counted

MOST_CELLS = 3000
"""Of longer timelines the start is shown."""
WORDS = {"compute": "computing", StepKind.EXCHANGE: "exchanging", "wait": "waiting for others"}
COLORS = {
    "computing": _palette.STEP_COLORS["matrix"],
    "exchanging": _palette.PHASE_COLORS["communication"],
    "waiting for others": _palette.WAITING,
}


def node_timeline(
    timelines: StrategyTimeline | Mapping[str, StrategyTimeline],
) -> alt.Chart | alt.FacetChart:
    """Return what nodes do as bars on one clock, a row per node.

    Args:
        timelines: from `mimokit.prediction.strategy_timeline`: one, or name -> timeline.

    Raises:
        ValueError: no timeline is given.
    """
    named = {"": timelines} if isinstance(timelines, StrategyTimeline) else dict(timelines)
    if not named:
        raise ValueError("The chart node_timeline needs at least one timeline.")
    rows = [row for name, timeline in named.items() for row in _rows(name, timeline)]
    whole = max((row["stop"] for row in rows), default=0.0)
    until = whole
    if len(rows) > MOST_CELLS:
        until = sorted(row["start"] for row in rows)[MOST_CELLS]
        rows = [{**row, "stop": min(row["stop"], until)} for row in rows if row["start"] < until]
    bars = _bars(rows, until)
    shares = ", ".join(_share(name, timeline) for name, timeline in named.items())
    cut = f"; the first {until:.3g} s" if until < whole else ""
    subtitle = f"share of the time computing: {shares}{cut}"
    description = f"Timeline of the nodes under {counted(len(named), 'strategy')}"
    if len(named) == 1:
        return titled(bars, "What nodes do", subtitle, description)
    header = alt.Header(labelAngle=0, labelAlign="left", labelPadding=10)
    row = alt.Row("strategy:N", title=None, sort=list(named), header=header)
    facets = bars.facet(row=row, spacing=10)
    return titled(facets, "What nodes do", subtitle, description)


def _bars(rows: list[dict[str, Any]], until: float) -> alt.Chart:
    chart: alt.Chart = (
        alt.Chart(inline(rows))
        .mark_bar(height=alt.RelativeBandSize(0.9))
        .encode(
            x=alt.X(
                "start:Q",
                title="predicted seconds",
                axis=alt.Axis(grid=False, tickCount=8),
                scale=alt.Scale(domain=[0, until], nice=False),
            ),
            x2="stop:Q",
            y=alt.Y("node:N", title=None, sort=None, axis=alt.Axis(minExtent=_axes.LEFT)),
            color=_axes.parts("activity", rows, COLORS),
            tooltip=[
                "node:N",
                "activity:N",
                alt.Tooltip("start:Q", format=".4~g"),
                alt.Tooltip("stop:Q", format=".4~g"),
                alt.Tooltip("step:Q", title="steps completed"),
            ],
        )
        .properties(height=alt.Step(13))
    )
    return chart


def _rows(name: str, timeline: StrategyTimeline) -> Iterator[dict[str, Any]]:
    for node in range(timeline.nodes):
        for block in _joined([block for block in timeline.blocks if block.node == node]):
            yield {
                "strategy": name,
                "node": f"node {node}",
                "activity": WORDS[block.activity],
                "start": block.start,
                "stop": block.stop,
                "step": block.step,
            }


def _joined(blocks: list[NodeBlock]) -> list[NodeBlock]:
    joined: list[NodeBlock] = []
    for block in blocks:
        if joined and joined[-1].activity == block.activity and joined[-1].stop == block.start:
            before = joined.pop()
            block = NodeBlock(block.node, block.activity, before.start, block.stop, block.step)
        joined.append(block)
    return joined


def _share(name: str, timeline: StrategyTimeline) -> str:
    whole = timeline.nodes * timeline.wall_seconds
    share = sum(timeline.seconds("compute")) / whole if whole else 1.0
    return f"{name} {share:.0%}".strip()
