"""What replicas do in one drawn batch, and when they wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mimokit.planning.schedule import simulate
from mimokit.prediction.module_costs import EncoderCost, LanguageCost
from mimokit.prediction.over_samples.passes import (
    BatchWork,
    seconds_in_groups,
    stage_table,
    text_pipeline,
)
from mimokit.prediction.over_samples.predict import replicas_of
from mimokit.prediction.over_samples.result import PolicyPrediction
from mimokit.prediction.over_samples.tables import Seconds
from mimokit.prediction.pipeline import has_phases, timed_pipeline
from mimokit.prediction.prediction import costs_of
from mimokit.prediction.task import PredictionTask
from mimokit.prediction.timeline import (
    Block,
    BlockKind,
    PredictedTimeline,
    computations,
    lane_names,
)

Floats = NDArray[np.float64]
MOST_LANES = 32
MOST_MICRO_BATCHES = 128
"""Of a step; of more, blocks are too small to see."""
WAYS: tuple[BlockKind, BlockKind] = ("forward", "backward")


def batch_timeline(
    task: PredictionTask, known: PolicyPrediction, batch: int
) -> PredictedTimeline | None:
    """Return what replicas do in a drawn batch, with the update behind their passes.

    A lane is a replica, or a stage of it; of more than `MOST_LANES` the replicas with the most
    work. Of replicas that have the same samples, and so wait for each other, the slowest has the
    lanes.

    Returns:
        The step; None if it has too many micro-batches.
    """
    layout, work = task.layout, known.computed.of_batch(batch)
    if work.micro_batches > MOST_MICRO_BATCHES:
        return None
    language, encoders = costs_of(task.model, layout, task.workload, task.system)
    language = replace(language, micro_batches=float(work.micro_batches))
    groups = replicas_of(task).groups
    if layout.mode == "colocated" and not has_phases(layout):
        names, blocks = _phases(task, work, language, groups)
    else:
        names, blocks = _pipelines(task, work, language, encoders, groups)
    end, seconds = max(block.stop for block in blocks), float(known.seconds[batch])
    if seconds > end:
        blocks += [Block(lane, None, "update", end, seconds) for lane in range(len(names))]
    return PredictedTimeline(tuple(names), tuple(blocks), seconds)


@dataclass
class _SharedRanks:
    """Lanes of replicas whose modules run one after the other.

    Attributes:
        now: seconds at which each group has ended what it did.
    """

    lanes: int
    now: Floats
    blocks: list[Block] = field(default_factory=list)

    def run(
        self,
        module: str,
        passes: Sequence[tuple[BlockKind, Floats]],
        taken: range,
        whole: Floats | None = None,
    ) -> None:
        """Let a module run for some micro-batches.

        Args:
            passes: kind and seconds of each, [micro-batches, replicas].
            whole: seconds that it takes in each group; None: those of its passes.
        """
        groups, begin = len(self.now), self.now.copy()
        for lane in range(self.lanes):
            group = lane * groups // self.lanes
            start = begin[group]
            each = [
                (kind, number, _at(seconds, number, lane * seconds.shape[-1] // self.lanes))
                for number in taken
                for kind, seconds in passes
            ]
            total = sum(spent for *_, spent in each)
            share = 1.0 if whole is None or not total else float(whole[group]) / total
            for kind, number, spent in each:
                if spent > 0:
                    stop = start + share * spent
                    self.blocks.append(Block(lane, module, kind, start, stop, number))
                    start = stop
            self.now[group] = max(self.now[group], start)


def _at(seconds: Floats, micro_batch: int, replica: int) -> float:
    return float(seconds[min(micro_batch, len(seconds) - 1), replica])


def _phases(
    task: PredictionTask, work: BatchWork, language: LanguageCost, groups: int
) -> tuple[list[str], list[Block]]:
    layout, count, name = task.layout, work.micro_batches, task.layout.language
    at_once = min(layout.encoder_microbatches or task.workload.encoder_microbatches or count, count)
    replicas = max(int(layout.modules[module].data) for module in work.modules)
    encoders = {module: each for module, each in work.modules.items() if module != name}
    whole = text_pipeline(task, work, language) if at_once == count else None
    text = work.modules[name]
    slowest = int((text.forward + text.backward).mean(axis=(1, 2, 3)).argmax())
    ranks = _SharedRanks(min(replicas, MOST_LANES), np.zeros(groups))
    for begin in range(0, count, at_once):
        taken = range(begin, min(begin + at_once, count))
        for module, seconds in encoders.items():
            ranks.run(module, [("forward", seconds.forward[0, 0])], taken)
        both = text.forward[slowest, 0], text.backward[slowest, 0]
        spent = None if whole is None else np.broadcast_to(whole[0], groups)
        ranks.run(name, [*zip(WAYS, both, strict=True)], taken, spent)
        for module, seconds in encoders.items():
            ranks.run(module, [("backward", seconds.backward[0, 0])], taken)
    return [f"replica {lane}" for lane in range(ranks.lanes)], ranks.blocks


def _pipelines(
    task: PredictionTask,
    work: BatchWork,
    language: LanguageCost,
    encoders: list[EncoderCost],
    groups: int,
) -> tuple[list[str], list[Block]]:
    modules, count = seconds_in_groups(task, work, groups), work.micro_batches
    timed = timed_pipeline(task.layout, language, encoders, task.workload, task.system)
    graph, of_workers = timed.schedule.graph, lane_names(timed.schedule)
    names: list[str] = []
    blocks: list[Block] = []
    for group in _heaviest(modules, groups, max(1, MOST_LANES // len(of_workers))):
        chosen = np.full((1, 1, 1), group)
        forward, backward = (
            stage_table(graph.stages, modules, way, count, chosen)[0] for way in WAYS
        )
        timeline = simulate(timed.schedule, forward, backward, timed.transfer)
        for stage, number, kind, start, stop in computations(timeline):
            lane, way = len(names) + graph.worker_of[stage], WAYS[kind > 0]
            whole = Block(lane, graph.stages[stage].module, way, start, stop, number)
            blocks += _parts(task, work, whole, stage, group)
        alone = len(of_workers) == 1
        names += [
            f"replica {group}" if alone else f"replica {group}: {name}" for name in of_workers
        ]
    return names, blocks


def _heaviest(modules: dict[str, Seconds], groups: int, most: int) -> list[int]:
    sums = [np.broadcast_to(each.busiest[0].sum(axis=0), groups) for each in modules.values()]
    return sorted(np.argsort(-np.sum(sums, axis=0), kind="stable")[:most].tolist())


def _parts(
    task: PredictionTask, work: BatchWork, whole: Block, stage: int, replica: int
) -> Iterator[Block]:
    """Yield what modules do in a pass of a stage that they share: encoders forward first."""
    if task.layout.mode != "homogeneous":
        yield whole
        return
    shares = {}
    for name, seconds in work.modules.items():
        values = seconds.forward if whole.kind == "forward" else seconds.backward
        if stage < len(values):
            own = values[stage, 0]
            shares[name] = _at(own, whole.micro_batch or 0, min(replica, own.shape[-1] - 1))
    total, start = sum(shares.values()), whole.start
    for name in list(shares)[:: 1 if whole.kind == "forward" else -1]:
        stop = start + (whole.stop - whole.start) * (shares[name] / total if total else 0.0)
        if stop > start:
            yield replace(whole, module=name, start=start, stop=stop)
        start = stop
