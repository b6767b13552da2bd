"""Plans, predictions and traces as spans on lanes: what the one timeline draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from mimokit.charts._palette import PHASE_COLORS, STEP_COLORS, WAITING, pass_colors
from mimokit.planning.pipeline import PipelinePlan
from mimokit.planning.schedule import unit_timeline
from mimokit.planning.stepper import Tick, clock_of, planned_crossings
from mimokit.planning.stepper.clock import PlannedStep
from mimokit.planning.types import LayoutPlan
from mimokit.step_kinds import COMPUTATIONS, RECEIVES, Phase, StepKind
from mimokit.units import bytes_text, listed, samples_text, seconds_text

if TYPE_CHECKING:
    import pandas as pd

    from mimokit.planning.schedule import Timeline
    from mimokit.prediction import PredictedTimeline

UNITS = "units of the plan's clock: a forward takes 1, a backward 2"
PERFETTO = "https://ui.perfetto.dev"
RECOMPUTED = "recompute"
"""What a rank computes again inside a step; the others there are communication."""
COMPUTING = "computing"
NODES = {"compute": COMPUTING, StepKind.EXCHANGE: "exchanging", "wait": "waiting for others"}
"""What a node does -> what its colour stands for."""
NODE_COLORS = STEP_COLORS["matrix"], PHASE_COLORS[Phase.COMMUNICATION], WAITING
MOST_ENDS = 4
"""Transfers of a step that are named; of more, how many there are."""


@dataclass(frozen=True)
class TimelineSpan:
    """What a lane does for a while.

    Attributes:
        key: what its colour stands for.
        words: what is said of it besides its lane and its time.
    """

    lane: int
    key: str
    start: float
    stop: float
    words: str


@dataclass(frozen=True)
class TimelineGroup:
    """Lanes that belong together: measured, planned or predicted."""

    title: str
    lanes: tuple[str, ...]
    spans: tuple[TimelineSpan, ...]


def of_trace(
    trace: pd.DataFrame, plan: LayoutPlan | None, title: str, inside: pd.DataFrame | None = None
) -> TimelineGroup:
    """Return the steps of every rank; with a plan, transfers say their bytes and ends.

    Args:
        inside: what took place inside the steps, on a lane below those of its rank.
    """
    ranks = sorted(set(trace["rank"]))
    below = set() if inside is None else set(inside["rank"])
    ends = {} if plan is None else _ends(plan, ranks)
    lanes: list[str] = []
    spans: list[TimelineSpan] = []
    for rank in ranks:
        spans += _of_rank(trace, rank, len(lanes), ends)
        lanes.append(f"rank {rank}")
        if inside is not None and rank in below:
            spans += _innermost(_of_rank(inside, rank, len(lanes), {}))
            lanes.append(f"rank {rank}, inside its steps")
    return TimelineGroup(title, tuple(lanes), tuple(spans))


def _of_rank(
    steps: pd.DataFrame, rank: int, lane: int, ends: Mapping[tuple[int, str, str | None], str]
) -> Iterator[TimelineSpan]:
    for row in steps[steps["rank"] == rank].to_dict("records"):
        name = str(row["name"])
        module = None if _is_missing(row["module"]) else str(row["module"])
        microbatch = None if _is_missing(row["microbatch"]) else int(row["microbatch"])
        words = _words(name, module, microbatch, ends.get((rank, name, module), ""))
        yield TimelineSpan(lane, _key(name, module), row["start"], row["stop"], words)


def _innermost(spans: Iterable[TimelineSpan]) -> Iterator[TimelineSpan]:
    """Yield the spans of a lane one after another: the pieces of what has others inside."""
    around: list[TimelineSpan] = []
    now = -math.inf
    for span in sorted(spans, key=lambda span: (span.start, -span.stop)):
        while around and around[-1].stop <= span.start:
            ended = around.pop()
            yield from _piece(ended, now, ended.stop)
            now = max(now, ended.stop)
        if around:
            yield from _piece(around[-1], now, span.start)
        now = span.start
        around.append(span)
    while around:
        ended = around.pop()
        yield from _piece(ended, now, ended.stop)
        now = max(now, ended.stop)


def _piece(span: TimelineSpan, start: float, stop: float) -> Iterator[TimelineSpan]:
    if start < stop:
        yield replace(span, start=start, stop=stop)


def _is_missing(value: Any) -> bool:
    return value is None or str(value) in ("nan", "<NA>")


def of_prediction(timeline: PredictedTimeline) -> TimelineGroup:
    """Return what each stage is predicted to do."""
    spans = []
    for block in timeline.blocks:
        chunk = "" if block.chunk is None else f"chunk {block.chunk}"
        words = _words(block.kind, block.module, block.micro_batch, chunk)
        key = f"{block.module} {block.kind}" if block.kind in COMPUTATIONS else block.kind
        spans.append(TimelineSpan(block.lane, key, block.start, block.stop, words))
    return TimelineGroup("predicted", timeline.lanes, tuple(spans))


class NodesTimeline(Protocol):
    """What a timeline needs of nodes; `mimokit.prediction.strategy_timeline` returns it."""

    @property
    def blocks(self) -> Sequence[Any]:
        """What a node does for a while: node, activity, start, stop, step."""

    @property
    def nodes(self) -> int:
        """How many there are."""


def of_nodes(name: str, timeline: NodesTimeline) -> TimelineGroup:
    """Return what the nodes of a strategy do, and for how much of the time they compute."""
    whole = timeline.nodes * max((block.stop for block in timeline.blocks), default=0.0)
    computing = (block for block in timeline.blocks if NODES[block.activity] == COMPUTING)
    share = sum(block.stop - block.start for block in computing) / whole if whole else 1.0
    spans = []
    for block in timeline.blocks:
        key = NODES[block.activity]
        words = f"{key}, {block.step} steps completed"
        spans.append(TimelineSpan(block.node, key, block.start, block.stop, words))
    lanes = tuple(f"node {node}" for node in range(timeline.nodes))
    return TimelineGroup(f"{name}: computes for {share:.0%} of the time", lanes, tuple(spans))


def of_plan(plan: LayoutPlan) -> TimelineGroup:
    """Return the order of the plan on its clock."""
    pipeline = plan.pipeline
    if pipeline is None:
        return _of_ticks(plan)
    ends, lanes = _ends(plan, [ranks[0] for ranks in pipeline.ranks]), []
    spans: list[TimelineSpan] = []
    clock = unit_timeline(pipeline.schedule)
    for worker, stages in enumerate(pipeline.graph.workers):
        ranks = pipeline.ranks[stages[0]]
        module = pipeline.graph.stages[stages[0]].module
        span = f"{ranks[0]}–{ranks[-1]}" if len(ranks) > 1 else str(ranks[0])
        lanes.append(f"{module}, rank{'s' if len(ranks) > 1 else ''} {span}")
        spans += _of_worker(pipeline, clock, worker, ends)
    return TimelineGroup("planned", tuple(lanes), tuple(spans))


def _of_worker(
    pipeline: PipelinePlan,
    clock: Timeline,
    worker: int,
    ends: Mapping[tuple[int, str, str | None], str],
) -> Iterator[TimelineSpan]:
    stages = pipeline.graph.workers[worker]
    rank, received = pipeline.ranks[stages[0]][0], ""
    spans: list[TimelineSpan] = []
    for interval in clock.intervals(worker):
        action, kind = interval.action, str(interval.action.kind)
        stage = None if action.stage is None else pipeline.graph.stages[action.stage]
        name = None if stage is None else stage.module
        carried = ends.get((rank, kind, name), "")
        if interval.stop > interval.start:
            chunk = stages.index(stage.index) if stage is not None else 0
            more = [f"chunk {chunk}"] if len(stages) > 1 else []
            words = _words(kind, name, action.microbatch, ", ".join([*more, carried or received]))
            key, received = _key(kind, name), ""
            spans.append(
                TimelineSpan(worker, key, interval.start, interval.stop, words.rstrip(", "))
            )
        elif action.kind in RECEIVES:
            received = f"received {carried}" if carried else ""
        elif carried and spans:
            spans[-1] = replace(spans[-1], words=f"{spans[-1].words}, sent {carried}")
    yield from spans


def _of_ticks(plan: LayoutPlan) -> TimelineGroup:
    ends, spans = _ends(plan, [0]), []
    for number, tick in enumerate(clock_of(plan)):
        rank, step = next(iter(tick.steps.items()))
        more = ends.get((rank, str(step.name), step.module), "")
        words = _words(str(step.name), step.module, step.microbatch, more)
        key = _key(str(step.name), step.module)
        spans.append(TimelineSpan(0, key, float(number), number + 1.0, words))
    return TimelineGroup(
        "planned order, each step as long as the next", ("all ranks",), tuple(spans)
    )


def _words(name: str, module: str | None, microbatch: int | None, more: str) -> str:
    of = "" if module is None else f" of {module}"
    number = "" if microbatch is None else f", micro-batch {microbatch}"
    return f"{name}{of}{number}{', ' if more else ''}{more}"


def _key(name: str, module: str | None) -> str:
    if name in COMPUTATIONS and module is not None:
        return f"{module} {name}"
    if name == RECOMPUTED and module is not None:
        return f"{module} {StepKind.FORWARD}"
    kinds = {str(kind): str(kind.color) for kind in StepKind}
    return kinds.get(name, str(Phase.COMMUNICATION))


def _ends(plan: LayoutPlan, ranks: Iterable[int]) -> Mapping[tuple[int, str, str | None], str]:
    """Return (rank, step, module) -> from and to which ranks it carries what."""
    told: dict[tuple[int, str, str | None], str] = {}
    for rank in ranks:
        for action in plan.program.actions(rank):
            stage = None if action.stage is None else plan.program.graph.stages[action.stage]
            module = None if stage is None else stage.module
            key = rank, str(action.kind), module
            if action.edge is None or key in told:
                continue
            step = PlannedStep(action.kind, module, action.microbatch, action)
            told[key] = _transfers(plan, rank, step)
    return told


def _transfers(plan: LayoutPlan, rank: int, step: PlannedStep) -> str:
    crossings = dict(planned_crossings(plan, Tick(0.0, {rank: step})))
    named = [
        f"rank {crossing.source_rank} to rank {crossing.destination_rank}, samples "
        f"{samples_text((crossing.start, crossing.stop))}"
        for crossing in crossings
    ]
    if len(named) > MOST_ENDS:
        named = [*named[:MOST_ENDS], f"{len(named) - MOST_ENDS} more"]
    ends = {(c.source, c.destination, c.backward) for c in crossings}
    total = sum(
        bridge.bytes_backward if backward else bridge.bytes_forward
        for bridge in plan.colocated_bridges
        for source, destination, backward in ends
        if (bridge.source, bridge.destination) == (source, destination)
    ) + sum(
        (bridge.backward if backward else bridge.forward).bytes_between
        for bridge in plan.disjoint_bridges
        for source, destination, backward in ends
        if (bridge.source, bridge.destination) == (source, destination)
    )
    moved = f", {bytes_text(total)} over all ranks" if total else ""
    return f"from {listed(named)}{moved}" if named else ""


def timeline_view(
    groups: Iterable[TimelineGroup], modules: Iterable[str], unit: str, sentence: str = ""
) -> dict[str, Any]:
    """Return groups as plain data: a span is [lane, key, start, stop, words] of tables.

    Args:
        unit: "s", or what the numbers of the axis are.
    """
    groups = list(groups)
    colors = {
        **pass_colors(modules),
        **PHASE_COLORS,
        "bridge": STEP_COLORS["bridge"],
        "update": STEP_COLORS["update"],
        **dict(zip(NODES.values(), NODE_COLORS, strict=True)),
    }
    used = dict.fromkeys(span.key for group in groups for span in group.spans)
    keys = {key: number for number, key in enumerate(sorted(used, key=list(colors).index))}
    words: dict[str, int] = {}
    lanes: list[dict[str, str]] = []
    spans: list[list[float]] = []
    for group in groups:
        first = len(lanes)
        lanes += [{"group": group.title, "name": name} for name in group.lanes]
        for span in sorted(group.spans, key=lambda span: (span.lane, span.start)):
            place = words.setdefault(span.words, len(words))
            times = float(f"{span.start:.7g}"), float(f"{span.stop:.7g}")
            spans.append([first + span.lane, keys[span.key], *times, place])
    return {
        "perfetto": PERFETTO,
        "lanes": lanes,
        "keys": [{"name": name, "color": colors[name]} for name in keys],
        "words": list(words),
        "spans": spans,
        "unit": unit,
        "sentence": sentence,
    }


def spans_in_words(groups: Iterable[TimelineGroup], unit: str) -> Iterator[tuple[str, str, str]]:
    """Yield (group, lane, how long it works of how long), for pages without a picture."""
    for group in groups:
        until = max((span.stop for span in group.spans), default=0.0)
        busy = [0.0] * len(group.lanes)
        for span in group.spans:
            if span.key.endswith((*COMPUTATIONS, COMPUTING)):
                busy[span.lane] += span.stop - span.start
        for name, spent in zip(group.lanes, busy, strict=True):
            share = spent / until if until else 0.0
            length = seconds_text(until) if unit == "s" else f"{until:g} units"
            yield group.title, name, f"computes for {share:.1%} of {length}"
