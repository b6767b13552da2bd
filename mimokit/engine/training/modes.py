"""The functions that differ between deployment modes: build, read, run and observe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from mimokit.config import DataConfig, MimoParallelismConfig
from mimokit.config.user_code import UserCode
from mimokit.engine.colocated.model import (
    ColocatedModel,
    build_colocated_model,
)
from mimokit.engine.colocated.schedule import (
    MicrobatchLoss,
    forward_backward_steps,
    forward_microbatch,
)
from mimokit.engine.data.batch import Batch
from mimokit.engine.data.iterators import (
    Collate,
    Order,
    iterate_module_batches,
    iterate_shared_batches,
)
from mimokit.engine.pipeline.executor import LogitsObserver, StageExecutor, forward_only
from mimokit.engine.pipeline.executor import forward_backward_steps as stage_steps
from mimokit.engine.pipeline.model import HeterogeneousModel, build_heterogeneous_model
from mimokit.engine.steps import StepGenerator, exhaust
from mimokit.engine.user_loop.training import pipeline_steps, shared_ranks_steps
from mimokit.planning.types import LayoutPlan

RankModel: TypeAlias = ColocatedModel | HeterogeneousModel


@dataclass(frozen=True)
class Mode:
    """The functions of one deployment mode.

    Attributes:
        build: (config, plan, seed, code of the user) -> the model on this rank. Collective.
        read: (model, data config, data set, collate function, seed, order of the samples) -> the
            batches this rank reads, None if it reads no data.
        run: (model, iterator) -> the steps of forward and backward over all micro-batches of the
            plan; the result is the loss and tokens of this rank.
        observe_logits: (model, iterator, micro-batches, function) -> runs forward only; the
            function is given logits [samples, tokens, vocabulary / TP] and batch where they are.
    """

    build: Callable[[MimoParallelismConfig, LayoutPlan, int, UserCode], Any]
    read: Callable[
        [Any, DataConfig, Dataset[Any], Collate, int, Order | None], Iterator[Batch] | None
    ]
    run: Callable[[Any, Any], StepGenerator[list[MicrobatchLoss]]]
    observe_logits: Callable[[Any, Any, int, LogitsObserver], None]


def mode_of(plan: LayoutPlan) -> Mode:
    """Return the functions of a plan's mode."""
    return _MODES[plan.deployment_mode]


def _read_once(
    model: ColocatedModel,
    sizes: DataConfig,
    data: Dataset[Any],
    collate: Collate,
    seed: int,
    order: Order | None,
) -> Iterator[Batch]:
    return iterate_shared_batches(model.plan, sizes, dist.get_rank(), data, collate, seed, order)


def _observe_microbatches(
    model: ColocatedModel, iterator: Iterator[Batch], batches: int, observe: LogitsObserver
) -> None:
    with torch.no_grad():
        for number in range(batches):
            batch, _, logits = exhaust(forward_microbatch(iterator, model, number))
            observe(logits, batch)


def _read_for_stage(
    model: HeterogeneousModel,
    sizes: DataConfig,
    data: Dataset[Any],
    collate: Collate,
    seed: int,
    order: Order | None,
) -> Iterator[Batch] | None:
    rank, module = dist.get_rank(), model.stage.name
    if rank not in model.plan.batch.modules[module].loads:
        return None
    return iterate_module_batches(model.plan, sizes, rank, module, data, collate, seed, order)


def _observe_stage(
    model: HeterogeneousModel,
    iterator: Iterator[Batch] | None,
    batches: int,
    observe: LogitsObserver,
) -> None:
    """Run whole steps of the plan; micro-batches beyond `batches` are not observed."""
    seen = 0

    def counted(logits: torch.Tensor, batch: Batch) -> None:
        nonlocal seen
        if seen < batches:
            observe(logits, batch)
        seen += 1

    steps = -(-batches // model.plan.batch.num_microbatches)
    with torch.no_grad():
        for _ in range(steps):
            exhaust(StageExecutor(model, iterator).run(forward_only(model), counted))


def _run_together(
    model: ColocatedModel, iterator: Iterator[Batch]
) -> StepGenerator[list[MicrobatchLoss]]:
    if model.forward_step is not None:
        return shared_ranks_steps(iterator, model, model.forward_step)
    return forward_backward_steps(iterator, model, model.plan.batch.num_microbatches)


def _run_stage(
    model: HeterogeneousModel, iterator: Iterator[Batch] | None
) -> StepGenerator[list[MicrobatchLoss]]:
    if model.forward_step is not None:
        return pipeline_steps(iterator, model, model.forward_step)
    return stage_steps(iterator, model)


_SHARED_RANKS = Mode(
    build_colocated_model,
    _read_once,
    _run_together,
    _observe_microbatches,
)

_MODES = {
    "homogeneous": _SHARED_RANKS,
    "colocated": _SHARED_RANKS,
    "heterogeneous": Mode(
        build_heterogeneous_model,
        _read_for_stage,
        _run_stage,
        _observe_stage,
    ),
}
