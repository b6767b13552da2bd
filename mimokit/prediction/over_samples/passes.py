"""Seconds of the passes of drawn batches, in each deployment mode.

Replicas of modules that have the same samples are a group. A module of a group ends a micro-batch
with its slowest replica there; groups meet at the end of the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mimokit.planning.schedule import Stage, makespan
from mimokit.prediction.module_costs import EncoderCost, LanguageCost
from mimokit.prediction.over_samples.loads import BatchLoads
from mimokit.prediction.over_samples.tables import (
    Seconds,
    encoder_seconds,
    exchange_seconds,
    language_seconds,
)
from mimokit.prediction.pipeline import TimedPipeline, has_phases, is_small, timed_pipeline
from mimokit.prediction.task import PredictionTask
from mimokit.prediction.workload import branches_of

Floats = NDArray[np.float64]
HEAVIEST = 4
"""Groups of a batch whose pipelines are simulated, of those with the most work. Of 16 groups of two
layouts with a long tail, 4 put single batches up to 0.7 % and p50 up to 0.1 % too low."""


@dataclass(frozen=True)
class BatchWork:
    """Seconds of modules in drawn batches.

    Attributes:
        modules: module -> its seconds, [stages, batches, micro-batches, replicas].
    """

    modules: Mapping[str, Seconds]
    micro_batches: int

    def of_batch(self, batch: int) -> BatchWork:
        """Return that of one batch alone."""
        return BatchWork(
            {name: seconds.of_batch(batch) for name, seconds in self.modules.items()},
            self.micro_batches,
        )

    def per_replica(self) -> dict[str, Floats]:
        """Return module -> seconds of its slowest stage: [batches, micro-batches, replicas]."""
        passes = {name: seconds.busiest for name, seconds in self.modules.items()}
        return {
            name: np.broadcast_to(each, (len(each), self.micro_batches, each.shape[-1]))
            for name, each in passes.items()
        }


def work_of(task: PredictionTask, loads: BatchLoads, padded: Seconds | None = None) -> BatchWork:
    """Return the seconds of all modules; the language model comes last.

    Args:
        padded: those of the language model on full sequences, where they are known.
    """
    layout = task.layout
    modules = {}
    for branch in branches_of(task.model):
        own = sizes = layout.modules[branch.name]
        if layout.mode == "homogeneous":  # each context-parallel rank encodes all of its replica
            sizes = sizes.of_whole_items
        items = loads.items.get(branch.name)
        if items is None:
            continue
        seconds = encoder_seconds(task, branch, sizes, items)
        if branch.name in loads.moved:
            moved = loads.moved[branch.name]
            seconds = seconds.plus(exchange_seconds(task, branch, own, moved))
        modules[branch.name] = seconds
    if loads.tokens is not None or padded is None:
        padded = language_seconds(task, loads.tokens, loads.pairs)
    modules[layout.language] = padded
    return BatchWork(modules, loads.micro_batches)


def passes_of(
    task: PredictionTask,
    works: Sequence[BatchWork],
    costs: tuple[LanguageCost, list[EncoderCost]],
    groups: int,
) -> list[Floats]:
    """Return the seconds of all passes of each batch, [batches], of several works.

    The pipelines of works with as many micro-batches are simulated together, which costs little
    more than those of one.
    """
    counts = dict.fromkeys(work.micro_batches for work in works)
    seconds: dict[int, Floats] = {}
    for count in counts:
        alike = [number for number, work in enumerate(works) if work.micro_batches == count]
        each = _of_count(task, [works[number] for number in alike], costs, groups)
        seconds |= dict(zip(alike, each, strict=True))
    return [seconds[number] for number in range(len(works))]


def _of_count(
    task: PredictionTask,
    works: Sequence[BatchWork],
    costs: tuple[LanguageCost, list[EncoderCost]],
    groups: int,
) -> list[Floats]:
    layout, (language, encoders) = task.layout, costs
    count = works[0].micro_batches
    small = is_small(layout, count)
    language = replace(language, micro_batches=float(count))
    if layout.mode == "colocated" and not has_phases(layout):
        return [_in_phases(task, work, language, groups) for work in works]
    modules = [seconds_in_groups(task, work, groups) for work in works]
    alone = layout.mode == "homogeneous" and int(language.sizes.pipeline) == 1
    if alone or not small:
        return [_slowest_sum(each, count) for each in modules]
    timed = timed_pipeline(layout, language, encoders, task.workload, task.system)
    return [spans.max(axis=-1) for spans in _spans(timed, modules, count)]


def seconds_in_groups(task: PredictionTask, work: BatchWork, groups: int) -> dict[str, Seconds]:
    """Return module -> the seconds of its slowest replica in each group.

    In homogeneous mode encoders are in those of the language model.
    """
    if task.layout.mode == "homogeneous":
        return {task.layout.language: _on_stages(task.layout.language, work)}
    return {name: _grouped(seconds, groups) for name, seconds in work.modules.items()}


def _slowest_sum(modules: Mapping[str, Seconds], count: int) -> Floats:
    sums = [_summed(seconds.busiest, count).max(axis=-1) for seconds in modules.values()]
    return np.asarray(np.max(np.broadcast_arrays(*sums), axis=0))


def _on_stages(language: str, work: BatchWork) -> Seconds:
    """Return the seconds of the stages that all modules share: of the first, or of all."""
    text = work.modules[language]
    forward, backward = text.forward, text.backward
    first = (np.arange(len(forward)) == 0)[:, None, None, None]
    for name, seconds in work.modules.items():
        if name != language:
            here = 1.0 if len(seconds.forward) > 1 else first
            forward = forward + here * seconds.forward[:1]
            backward = backward + here * seconds.backward[:1]
    return Seconds(forward, backward)


def _grouped(seconds: Seconds, groups: int) -> Seconds:
    """Return the seconds of the slowest replica of each group."""
    return Seconds(_slowest(seconds.forward, groups), _slowest(seconds.backward, groups))


def _slowest(values: Floats, groups: int) -> Floats:
    if values.shape[-1] == 1:
        return values
    by_group: Floats = values.reshape(*values.shape[:-1], groups, -1).max(axis=-1)
    return by_group


def _summed(values: Floats, count: int) -> Floats:
    """Return [..., replicas] of [..., micro-batches, replicas], of which one may stand for all."""
    times = count if values.shape[-2] == 1 else 1
    sums: Floats = times * values.sum(axis=-2)
    return sums


def _in_phases(
    task: PredictionTask, work: BatchWork, language: LanguageCost, groups: int
) -> Floats:
    """Return the seconds of phases on shared ranks: encoders, the language model, encoders."""
    layout, count = task.layout, work.micro_batches
    at_once = min(layout.encoder_microbatches or task.workload.encoder_microbatches or count, count)
    text = work.modules[layout.language]
    whole = text_pipeline(task, work, language) if at_once == count else None
    piped, total = whole is not None, np.zeros((1, 1)) if whole is None else whole
    for begin in range(0, count, at_once):
        taken, many = slice(begin, begin + at_once), min(at_once, count - begin)
        if not piped:
            total = total + _slowest(_summed(_taken(text.busiest, taken), many), groups)
        for name, seconds in work.modules.items():
            if name != layout.language:
                for phase in (seconds.forward[0], seconds.backward[0]):
                    total = total + _slowest(_summed(_taken(phase, taken), many), groups)
    return np.asarray(total.max(axis=-1))


def text_pipeline(task: PredictionTask, work: BatchWork, language: LanguageCost) -> Floats | None:
    """Return the seconds of a language model's pipeline between phases: [batches, replicas]."""
    layout, count = task.layout, work.micro_batches
    if int(language.sizes.pipeline) == 1 or not is_small(layout, count):
        return None
    timed = timed_pipeline(layout, language, [], task.workload, task.system)
    modules = {layout.language: work.modules[layout.language]}
    (ends,) = _spans(timed, [modules], count, every=True)
    return ends


def _taken(values: Floats, taken: slice) -> Floats:
    return values if values.shape[-2] == 1 else values[..., taken, :]


def _spans(
    timed: TimedPipeline, works: Sequence[Mapping[str, Seconds]], count: int, *, every: bool = False
) -> list[Floats]:
    """Return when the pipelines of the heaviest groups of batches end: [batches, groups] of each.

    Args:
        every: of all groups, in their order.
    """
    picked = [_picked(modules, count, every=every) for modules in works]
    stages = timed.schedule.graph.stages
    forward, backward = (
        np.concatenate(
            [
                stage_table(stages, modules, way, count, chosen)
                for modules, chosen in zip(works, picked, strict=True)
            ]
        )
        for way in ("forward", "backward")
    )
    ends = makespan(timed.schedule, forward, backward, timed.transfer)
    shapes = [(chosen.shape[0], chosen.shape[2]) for chosen in picked]
    bounds = np.cumsum([batches * groups for batches, groups in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(ends, bounds), shapes, strict=True)]


def _picked(modules: Mapping[str, Seconds], count: int, *, every: bool) -> NDArray[np.int64]:
    """Return the groups that are simulated: [batches, 1, groups]."""
    sums = [_summed(seconds.busiest, count) for seconds in modules.values()]
    work = np.sum(np.broadcast_arrays(*sums), axis=0)
    if every or work.shape[-1] <= HEAVIEST:
        return np.broadcast_to(np.arange(work.shape[-1]), work.shape)[:, None, :]
    return np.argsort(-work, axis=-1)[:, None, :HEAVIEST]


def stage_table(
    stages: Sequence[Stage],
    modules: Mapping[str, Seconds],
    way: str,
    count: int,
    chosen: NDArray[np.int64],
) -> Floats:
    """Return the seconds of stages: [batches and groups, stages, micro-batches]."""
    chunks = Counter(stage.module for stage in stages)
    shapes = [seconds.forward.shape[1:] for seconds in modules.values()]
    batches, _, groups = np.broadcast_shapes(*shapes)
    rows = []
    for stage in stages:
        values: Floats = getattr(modules[stage.module], way)
        of_stage = values[stage.place % len(values)] * (len(values) / chunks[stage.module])
        if of_stage.shape[-1] > 1:
            whole = np.broadcast_to(of_stage, (batches, of_stage.shape[1], groups))
            of_stage = np.take_along_axis(whole, chosen, axis=-1)
        rows.append(np.broadcast_to(of_stage, (batches, count, chosen.shape[2])))
    table = np.stack(rows).transpose(1, 3, 0, 2)
    return table.reshape(-1, len(stages), count)
