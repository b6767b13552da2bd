"""The timeline of one predicted step: what each stage works on, and when."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from mimokit.architecture.modules import Model
from mimokit.planning.layout import ConfigSource
from mimokit.planning.schedule import Schedule, Timeline
from mimokit.planning.schedule.tasks import BACKWARD, FORWARD
from mimokit.prediction.layout import Layout
from mimokit.prediction.module_costs import EncoderCost, LanguageCost, bridge_seconds
from mimokit.prediction.pipeline import has_phases, is_small, timed_pipeline
from mimokit.prediction.prediction import costs_of, predict_task
from mimokit.prediction.step_time import Software, System
from mimokit.prediction.task import HardwareSource, PredictionTask, task_of
from mimokit.prediction.workload import Workload

BlockKind = Literal["forward", "backward", "bridge", "update"]

MOST_BLOCKS = 10_000
"""Stages times micro-batches above which single blocks are too small to see."""


@dataclass(frozen=True)
class Block:
    """One interval in which a stage works.

    Attributes:
        kind: forward, backward, the bridge between modules on shared ranks, or the update of
            gradients, optimizer and weights.
        micro_batch: 0-based, None if the block is for all micro-batches.
        chunk: of an interleaved stage, 0-based. None if the stage is not interleaved.
    """

    lane: int
    module: str | None
    kind: BlockKind
    start: float
    stop: float
    micro_batch: int | None = None
    chunk: int | None = None


@dataclass(frozen=True)
class PredictedTimeline:
    """One predicted step.

    Attributes:
        lanes: names of the stages: the module, and the number of the stage if it has several.
        blocks: what the stages do. Between blocks a stage waits.
    """

    lanes: tuple[str, ...]
    blocks: tuple[Block, ...]
    seconds: float


def predict_timeline(
    model: Model | ConfigSource,
    layout: Layout | None = None,
    workload: Workload | None = None,
    hardware: HardwareSource | None = None,
    *,
    gpu: HardwareSource | None = None,
    software: str | Software | None = None,
    world_size: int | None = None,
) -> PredictedTimeline | None:
    """Return what each stage of a layout works on, and when; arguments are those of `predict`.

    The pipeline is that of the event simulation, stretched to the predicted seconds of all passes,
    which for colocated encoders of one stage, and for interleaved chunks of a language model alone,
    come from a closed form. The timeline does not separate the work of an encoder in an interleaved
    first stage from the chunks around it.

    Returns:
        The step. None if it cannot be drawn: a micro-batch is a fraction, or there are too many
        blocks.

    Raises:
        ConfigError: as `predict` does.
    """
    return task_timeline(
        task_of(
            model, layout, workload, hardware, gpu=gpu, software=software, world_size=world_size
        )
    )


def task_timeline(task: PredictionTask) -> PredictedTimeline | None:
    """Return the timeline of a task; see `predict_timeline`."""
    layout, workload, system = task.layout, task.workload, task.system
    prediction = predict_task(task)
    language, encoders = costs_of(task.model, layout, workload, system)
    count = float(language.micro_batches)
    stages = sum(int(sizes.pipeline) for sizes in layout.modules.values())
    if stages * count > MOST_BLOCKS or not is_small(layout, count):
        return None
    phases = layout.mode == "colocated" and not has_phases(layout)
    before, after = _phases(encoders, language, workload, system) if phases else ((), ())
    names, passes = _passes(task, language, encoders)
    begin = sum(seconds for *_, seconds in before)
    end = prediction.seconds - prediction.parts["update"] - sum(seconds for *_, seconds in after)
    stretch = (end - begin) / max(block.stop for block in passes)
    lanes = range(len(names))
    blocks = [
        *_in_turn(before, lanes, 0.0),
        *(
            replace(block, start=begin + stretch * block.start, stop=begin + stretch * block.stop)
            for block in passes
        ),
        *_in_turn(after, lanes, end),
        *_in_turn(((None, "update", prediction.parts["update"]),), lanes,
                  prediction.seconds - prediction.parts["update"]),
    ]  # fmt: skip
    return PredictedTimeline(names, tuple(blocks), prediction.seconds)


def _passes(
    task: PredictionTask, language: LanguageCost, encoders: list[EncoderCost]
) -> tuple[tuple[str, ...], tuple[Block, ...]]:
    layout = task.layout
    timed = timed_pipeline(layout, language, encoders, task.workload, task.system)
    timeline = timed.timeline()
    if any(len(stages) > 1 for stages in timeline.schedule.graph.workers):
        return lane_names(timeline.schedule), tuple(_chunks(timeline))
    return lane_names(timeline.schedule), tuple(_pipeline(layout, timeline, encoders))


def _chunks(timeline: Timeline) -> Iterator[Block]:
    graph = timeline.schedule.graph
    for stage, micro_batch, kind, start, stop in computations(timeline):
        lane = graph.worker_of[stage]
        module = graph.stages[stage].module
        own = [each for each in graph.workers[lane] if graph.stages[each].module == module]
        yield Block(
            lane,
            module,
            "backward" if kind else "forward",
            start,
            stop,
            micro_batch,
            own.index(stage) if len(own) > 1 else None,
        )


def computations(timeline: Timeline) -> Iterator[tuple[int, int, int, float, float]]:
    """Yield (stage, micro-batch, place of its kind in `COMPUTATIONS`, start, stop)."""
    tasks = timeline.tasks
    columns = (tasks.place, tasks.microbatch, tasks.kind, timeline.start, timeline.stop)
    chosen = ~tasks.transfer
    yield from zip(*(column[chosen].tolist() for column in columns), strict=True)


Phase = tuple[str | None, BlockKind, float]
"""Module, kind of block, and seconds."""


def _phases(
    encoders: list[EncoderCost], language: LanguageCost, workload: Workload, system: System
) -> tuple[tuple[Phase, ...], tuple[Phase, ...]]:
    before: list[Phase] = []
    after: list[Phase] = []
    for cost in encoders:
        bridge = float(bridge_seconds(cost, language.sizes, workload, system))
        before += [(cost.name, "forward", float(cost.forward)), (cost.name, "bridge", bridge)]
        after += [(cost.name, "bridge", bridge), (cost.name, "backward", float(cost.backward))]
    return tuple(before), tuple(after)


def _in_turn(phases: tuple[Phase, ...], lanes: range, begin: float) -> Iterator[Block]:
    for module, work, seconds in phases:
        if seconds > 0:
            for lane in lanes:
                yield Block(lane, module, work, begin, begin + seconds)
        begin += seconds


def _pipeline(layout: Layout, timeline: Timeline, encoders: list[EncoderCost]) -> Iterator[Block]:
    stages = timeline.schedule.graph.stages
    inside = _inside(layout, encoders, timeline)
    for place, micro_batch, kind, start, stop in computations(timeline):
        work: BlockKind = "backward" if kind else "forward"
        shares = inside.get((place, kind), ())
        whole = (*shares, (stages[place].module, 1 - sum(share for _, share in shares)))
        width = stop - start
        for module, share in whole[:: -1 if kind else 1]:  # backward runs in reverse order
            until = start + share * width
            if share > 0:
                yield Block(place, module, work, start, until, micro_batch)
            start = until


def _inside(
    layout: Layout, encoders: list[EncoderCost], timeline: Timeline
) -> dict[tuple[int, int], tuple[tuple[str, float], ...]]:
    """Return (stage, kind) -> encoders and their shares of the work, in homogeneous mode.

    An encoder with one stage is in the first stage of the language model, otherwise in all stages.
    Its gradients of weights come with those of its inputs.
    """
    if layout.mode != "homogeneous" or not encoders:
        return {}
    by_stage: dict[tuple[int, int], tuple[tuple[str, float], ...]] = {}
    count = timeline.schedule.num_microbatches
    busy = _busy(timeline)
    for (stage, kind), seconds in busy.items():
        if kind not in (FORWARD, BACKWARD):
            continue
        shares = []
        for cost in encoders:
            if stage and int(cost.sizes.pipeline) == 1:
                continue
            spent = float(cost.backward if kind == BACKWARD else cost.forward) / count
            shares.append((cost.name, spent / seconds if seconds else 0.0))
        by_stage[stage, kind] = tuple(shares)
    return by_stage


def _busy(timeline: Timeline) -> dict[tuple[int, int], float]:
    """Return (stage, kind) -> seconds of one micro-batch."""
    return {(place, kind): stop - start for place, _, kind, start, stop in computations(timeline)}


def lane_names(schedule: Schedule) -> tuple[str, ...]:
    """Return the module of each set of ranks, and its number if the module has several."""
    graph = schedule.graph
    first = [
        next(graph.stages[stage] for stage in stages if stage not in graph.beside)
        for stages in graph.workers
    ]
    modules = [stage.module for stage in first]
    return tuple(
        f"{stage.module} {stage.place}" if modules.count(stage.module) > 1 else stage.module
        for stage in first
    )
