"""`ScheduleView`: what a schedule idles, for any number of stages and micro-batches."""

from collections.abc import Mapping
from typing import Any

import traitlets

from mimokit.charts.timeline.spans import UNITS, TimelineGroup, TimelineSpan, timeline_view
from mimokit.planning.schedule import (
    Order,
    Timeline,
    gpipe,
    interleaved,
    one_forward_one_backward,
    plan_schedule,
    simulate,
    stage_graph,
    zero_bubble,
)
from mimokit.step_kinds import COMPUTATIONS
from mimokit.tables import Section
from mimokit_widgets._widget import PersistentWidget
from mimokit_widgets.timeline_view import STYLES

ENCODER, LANGUAGE = "images", "language_module"
"""Called as in the shipped configs, so that they have the same colours."""
ORDERS: Mapping[str, Order] = {
    "GPipe": gpipe,
    "1F1B": one_forward_one_backward,
    "ZB-H1": zero_bubble,
    "interleaved": interleaved,
}


def compared(
    stages: int, microbatches: int, encoder_stages: int, chunks: int
) -> tuple[list[TimelineGroup], str]:
    """Return the lanes of each schedule, all with the work of one model; and why one has none.

    Args:
        stages: of the language model.
        encoder_stages: of an encoder in front of it; 0: there is none.
        chunks: stages of each set of ranks of the language model, where they are interleaved.
    """
    problem, groups = _not_interleaved(stages, chunks), []
    for name, order in ORDERS.items():
        if order is not interleaved or not problem:
            timeline = _timeline(order, stages, microbatches, encoder_stages, chunks)
            groups.append(_group(name, timeline))
    return groups, problem


def _not_interleaved(stages: int, chunks: int) -> str:
    if chunks == 1:
        return "With 1 chunk there is nothing to interleave; take 2 chunks or more."
    if stages == 1:
        return "Chunks of 1 stage cannot interleave; take 2 stages of the language model or more."
    return ""


def _timeline(
    order: Order, stages: int, microbatches: int, encoder_stages: int, chunks: int
) -> Timeline:
    several = chunks if order is interleaved else 1
    sizes, topology = {LANGUAGE: stages}, dict[str, tuple[str, ...]]({LANGUAGE: ()})
    if encoder_stages:
        sizes, topology = {ENCODER: encoder_stages, **sizes}, {ENCODER: (LANGUAGE,), **topology}
    graph = stage_graph(topology, sizes, {LANGUAGE: several})
    share = [several if stage.module == LANGUAGE else 1 for stage in graph.stages]
    schedule = plan_schedule(graph, microbatches, order)
    return simulate(schedule, [1 / parts for parts in share], [2 / parts for parts in share])


def _group(name: str, timeline: Timeline) -> TimelineGroup:
    said = (
        f"{name}: {timeline.makespan:.4g} units, the stage that idles most idles "
        f"{max(timeline.bubble):.1%}; at most {max(timeline.in_flight)} micro-batches in flight"
    )
    graph, spans, lanes = timeline.schedule.graph, [], []
    for worker, own in enumerate(graph.workers):
        first = graph.stages[own[0]]
        lanes.append(f"{first.module} {first.place}")
        for interval in timeline.intervals(worker):
            action = interval.action
            if action.kind not in COMPUTATIONS or action.stage is None:
                continue
            chunk = f", chunk {own.index(action.stage)}" if len(own) > 1 else ""
            key = f"{graph.stages[action.stage].module} {action.kind}"
            words = f"{key}, micro-batch {action.microbatch}{chunk}"
            spans.append(TimelineSpan(worker, key, interval.start, interval.stop, words))
    return TimelineGroup(said, tuple(lanes), tuple(spans))


MOST_STAGES, MOST_MICROBATCHES, MOST_CHUNKS = 16, 64, 4


class ScheduleView(PersistentWidget, entry="schedule_view.js", styles=STYLES):
    """GPipe, 1F1B, ZB-H1 and interleaved chunks side by side, with sliders.

    A forward of a whole stage takes 1 and its backward 2, of which gradients of weights take 1.

    Attributes:
        stages: sets of ranks of the language model.
        microbatches: of an optimizer step.
        encoder_stages: of an encoder in front of the language model; 0: there is none.
        chunks: of each set of ranks, where they are interleaved.
        groups: what is drawn of each schedule.
    """

    stages = traitlets.Int(4, min=1, max=MOST_STAGES).tag(sync=True)
    microbatches = traitlets.Int(8, min=1, max=MOST_MICROBATCHES).tag(sync=True)
    encoder_stages = traitlets.Int(1, min=0, max=MOST_STAGES).tag(sync=True)
    chunks = traitlets.Int(2, min=1, max=MOST_CHUNKS).tag(sync=True)
    _timeline = traitlets.Dict().tag(sync=True)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.observe(self._draw, ["stages", "microbatches", "encoder_stages", "chunks"])
        self._draw()

    def _draw(self, _: object = None) -> None:
        asked = self.stages, self.microbatches, self.encoder_stages, self.chunks
        self.groups, problem = compared(*map(int, asked))  # True is an Int of traitlets
        drawn = timeline_view(self.groups, [ENCODER, LANGUAGE], UNITS, problem)
        self._timeline = {**drawn, "perfetto": ""}  # nothing ran
        self._saved.follow()

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        name = str(content.get("name"))
        if name in ("stages", "microbatches", "encoder_stages", "chunks"):
            setattr(self, name, int(content["value"]))

    def _still(self) -> str:
        rows = [group.title.split(": ") for group in self.groups]
        return Section("", ("schedule", "of the step"), rows).to_html()
