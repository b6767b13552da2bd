"""The computations of every pipeline stage over time, with the critical path."""

from collections.abc import Iterator, Mapping
from typing import Any

import altair as alt

from mimokit.charts import _axes, _palette
from mimokit.charts._axes import inline, layered, titled
from mimokit.planning.schedule import Timeline
from mimokit.step_kinds import COMPUTATIONS
from mimokit.units import counted

MOST_COLUMNS = 4
MOST_CELLS = 3000
MOST_CELLS_WITH_TEXT = 400
NARROWEST_WITH_TEXT = 1 / 70
"""Share of the width of the chart."""


def pipeline_timeline(timeline: Timeline, unit: str = "units") -> alt.LayerChart:
    """Return the computations of every stage as bars on one clock.

    The light shade of a module is its forward pass, the full colour its backward pass, a darker one
    the gradients of weights where an order has them apart. A dark line below a bar marks the
    critical path: only if it becomes shorter does the step. Of a long pipeline the start is shown.

    Args:
        timeline: from `mimokit.planning.schedule.simulate`, or `plan.pipeline.timeline()`.
        unit: of its times, for the axis.
    """
    colors = _palette.pass_colors(stage.module for stage in timeline.schedule.graph.stages)
    rows = list(_rows(timeline, colors))
    until = timeline.makespan
    if len(rows) > MOST_CELLS:
        rows = sorted(rows, key=lambda row: float(row["start"]))[:MOST_CELLS]
        until = max(float(row["start"]) for row in rows)
        rows = [{**row, "stop": min(row["stop"], until)} for row in rows]
    base = alt.Chart(inline(rows)).encode(
        x=_axes.clock(unit, until),
        x2="stop:Q",
        y=alt.Y(
            "stage:N",
            title=None,
            sort=_names(timeline),
            axis=alt.Axis(minExtent=_axes.LEFT, labelLimit=180),
        ),
        tooltip=[
            "stage:N",
            "pass:N",
            alt.Tooltip("microbatch:Q", title="micro-batch"),
            alt.Tooltip("start:Q", format=".4~g"),
            alt.Tooltip("stop:Q", format=".4~g"),
        ],
    )
    bars = base.mark_bar(stroke=_palette.PAPER, strokeWidth=0.5, height=alt.RelativeBandSize(0.9))
    critical = base.transform_filter("datum.critical")
    layers = [
        bars.encode(color=_axes.parts("key", rows, colors, _columns(colors))),
        critical.mark_bar(color=_palette.TEXT, height=2, yOffset=10),
    ]
    if len(rows) <= MOST_CELLS_WITH_TEXT:
        layers.append(_numbers(base, until * NARROWEST_WITH_TEXT))
    stages = counted(len(timeline.schedule.graph.stages), "pipeline stage")
    return titled(
        layered(*layers),
        "Pipeline",
        _subtitle(timeline, unit, until),
        f"Timeline of {stages} and {counted(timeline.schedule.num_microbatches, 'micro-batch')}",
        height=alt.Step(24),
    )


def _columns(colors: Mapping[str, str]) -> int:
    modules = len(colors) // len(COMPUTATIONS)
    return modules if 1 < modules <= MOST_COLUMNS else MOST_COLUMNS


def _rows(timeline: Timeline, colors: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    tasks, names = timeline.tasks, _names(timeline)
    critical = {
        (interval.action.stage, interval.action.kind, interval.action.microbatch)
        for interval in timeline.critical_path()
    }
    stages = timeline.schedule.graph.stages
    columns = (tasks.transfer, tasks.place, tasks.microbatch, tasks.kind)
    times = (timeline.start, timeline.stop)
    for transfer, place, microbatch, kind, start, stop in zip(
        *(column.tolist() for column in (*columns, *times)), strict=True
    ):
        if transfer:
            continue
        which = str(COMPUTATIONS[kind])
        key = f"{stages[place].module} {which}"
        yield {
            "stage": names[place],
            "key": key,
            "ink": _palette.ink_on(colors[key]),
            "pass": which,
            "microbatch": microbatch,
            "start": start,
            "stop": stop,
            "middle": (start + stop) / 2,
            "critical": (place, which, microbatch) in critical,
        }


def _names(timeline: Timeline) -> list[str]:
    return [f"{stage.module} {stage.place}" for stage in timeline.schedule.graph.stages]


def _numbers(base: alt.Chart, narrowest: float) -> alt.Chart:
    wide = base.transform_filter(f"datum.stop - datum.start >= {narrowest}")
    text: alt.Chart = wide.mark_text(fontSize=9, baseline="middle").encode(
        x="middle:Q",
        x2=alt.Undefined,
        text="microbatch:Q",
        color=alt.Color("ink:N", scale=None),
    )
    return text


def _subtitle(timeline: Timeline, unit: str, until: float) -> str:
    cut = f", the first {until:,.4g} shown" if until < timeline.makespan else ""
    return (
        f"{timeline.makespan:,.4g} {unit}{cut}; the stage that idles most idles "
        f"{max(timeline.bubble):.1%}; underlined: the critical path"
    )
