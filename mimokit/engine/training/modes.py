"""How a rank reads its batches and runs a step, in every mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.utils.data import Dataset

from mimokit.config import DataConfig
from mimokit.engine.data.batch import Batch
from mimokit.engine.data.iterators import Collate, iterate_module_batches, iterate_shared_batches
from mimokit.engine.data.order import Order
from mimokit.engine.pipeline.executor import MicrobatchLoss
from mimokit.engine.pipeline.model import RankModel
from mimokit.engine.pipeline.steps import forward_backward_steps
from mimokit.engine.steps import StepGenerator
from mimokit.engine.user_loop.stages import with_forward_step


def read_batches(
    model: RankModel,
    sizes: DataConfig,
    data: Dataset[Any],
    collate: Collate,
    seed: int,
    order: Order | None,
) -> Iterator[Batch] | None:
    """Return the batches that this rank reads, None if it reads no data.

    Args:
        model: the model on this rank.
        sizes: of micro-batches and samples.
        data: the data set.
        collate: makes a batch of samples.
        seed: of the order of the samples.
        order: of the samples within a micro-batch.
    """
    plan, rank = model.plan, dist.get_rank()
    if plan.deployment_mode != "heterogeneous":
        return iterate_shared_batches(plan, sizes, rank, data, collate, seed, order)
    module = model.last_stage.name
    if rank not in plan.batch.modules[module].loads:
        return None
    return iterate_module_batches(plan, sizes, rank, module, data, collate, seed, order)


def microbatch_steps(
    model: RankModel, iterator: Iterator[Batch] | None
) -> StepGenerator[list[MicrobatchLoss]]:
    """Yield the steps of forward and backward over all micro-batches of the plan."""
    if model.forward_step is not None:
        model = with_forward_step(model, model.forward_step)
    return forward_backward_steps(iterator, model)
