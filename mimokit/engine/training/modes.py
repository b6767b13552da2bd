"""What differs between the deployment modes: how a model is built, read for, run and looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from mimokit.config import DataConfig, MimoParallelismConfig
from mimokit.engine.colocated.model import (
    LaidOutModel,
    get_vlm_mimo_model_colocated,
    get_vlm_mimo_model_homogeneous,
)
from mimokit.engine.colocated.schedule import (
    MicrobatchLoss,
    forward_backward_steps,
    forward_microbatch,
)
from mimokit.engine.data.batch import Batch
from mimokit.engine.data.iterators import Collate, get_data_iterator, get_data_iterator_colocated
from mimokit.engine.pipeline.executor import StageExecutor, forward_only
from mimokit.engine.pipeline.model import HeterogeneousModel, get_vlm_mimo_model
from mimokit.engine.pipeline.schedule import forward_backward_steps as pipeline_steps
from mimokit.engine.steps import Schedule, exhaust
from mimokit.planning.types import LayoutPlan

Layout: TypeAlias = LaidOutModel | HeterogeneousModel
Look = Callable[[torch.Tensor, Batch], None]


@dataclass(frozen=True)
class Mode:
    """The functions of one deployment mode.

    Attributes:
        build: (config, plan, seed) -> what this rank holds. Collective.
        read: (layout, data config, data set, collate function, seed) -> the batches this rank
            reads, None where it reads nothing.
        run: (layout, iterator, micro-batches) -> the steps of forward and backward; its result is
            what this rank's share of the loss gave.
        look: (layout, iterator, global batches, function) -> runs forward only; the function is
            given logits [samples, tokens, vocabulary / TP] and batch where they are.
    """

    build: Callable[[MimoParallelismConfig, LayoutPlan, int], Any]
    read: Callable[[Any, DataConfig, Dataset[Any], Collate, int], Iterator[Batch] | None]
    run: Callable[[Any, Any, int], Schedule[list[MicrobatchLoss]]]
    look: Callable[[Any, Any, int, Look], None]


def mode_of(plan: LayoutPlan) -> Mode:
    """Return the functions of a plan's mode."""
    return _MODES[plan.deployment_mode]


def _read_once(
    layout: LaidOutModel, sizes: DataConfig, data: Dataset[Any], collate: Collate, seed: int
) -> Iterator[Batch]:
    return get_data_iterator_colocated(layout.plan, sizes, dist.get_rank(), data, collate, seed)


def _look_at_microbatches(
    layout: LaidOutModel, iterator: Iterator[Batch], batches: int, look: Look
) -> None:
    with torch.no_grad():
        for number in range(batches):
            batch, _, logits = exhaust(forward_microbatch(iterator, layout, number))
            look(logits, batch)


def _read_for_stage(
    layout: HeterogeneousModel, sizes: DataConfig, data: Dataset[Any], collate: Collate, seed: int
) -> Iterator[Batch] | None:
    rank, module = dist.get_rank(), layout.stage.name
    if rank not in layout.plan.batch.modules[module].loads:
        return None
    return get_data_iterator(layout.plan, sizes, rank, module, data, collate, seed)


def _look_at_stage(
    layout: HeterogeneousModel, iterator: Iterator[Batch] | None, batches: int, look: Look
) -> None:
    """Run whole steps of the plan; those that exceed the wanted batches are not looked at."""
    seen = 0

    def counted(logits: torch.Tensor, batch: Batch) -> None:
        nonlocal seen
        if seen < batches:
            look(logits, batch)
        seen += 1

    steps = -(-batches // layout.plan.batch.num_microbatches)
    with torch.no_grad():
        for _ in range(steps):
            exhaust(StageExecutor(layout, iterator).run(forward_only(layout), counted))


_MODES = {
    "homogeneous": Mode(
        get_vlm_mimo_model_homogeneous,
        _read_once,
        lambda layout, iterator, count: forward_backward_steps(iterator, layout, count),
        _look_at_microbatches,
    ),
    "colocated": Mode(
        get_vlm_mimo_model_colocated,
        _read_once,
        lambda layout, iterator, count: forward_backward_steps(iterator, layout, count),
        _look_at_microbatches,
    ),
    "heterogeneous": Mode(
        get_vlm_mimo_model,
        _read_for_stage,
        lambda layout, iterator, _: pipeline_steps(iterator, layout),
        _look_at_stage,
    ),
}
