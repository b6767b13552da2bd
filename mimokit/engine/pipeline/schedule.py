"""The 1F1B schedule of modules on separate ranks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mimokit.engine.colocated.schedule import MicrobatchLoss
from mimokit.engine.data.batch import Batch
from mimokit.engine.pipeline.executor import StageExecutor, before_reduction, forward_only
from mimokit.engine.pipeline.model import HeterogeneousModel
from mimokit.engine.steps import StepGenerator


def forward_backward_steps(
    data_iterator: Iterator[Batch] | None, model: HeterogeneousModel
) -> StepGenerator[list[MicrobatchLoss]]:
    """Yield the steps of a forward and a backward of all micro-batches."""
    executor = StageExecutor(model, data_iterator)
    # Gradients are summed over micro-batches here, and over replicas when they are finalized.
    yield from executor.run(before_reduction(model))
    model.stage.wrapped.num_tokens += executor.num_tokens
    return _losses(executor)


def forward_steps(
    data_iterator: Iterator[Batch] | None, model: HeterogeneousModel
) -> StepGenerator[list[MicrobatchLoss]]:
    """Yield the steps of the forward half alone."""
    executor = StageExecutor(model, data_iterator)
    with torch.no_grad():
        yield from executor.run(forward_only(model))
    return _losses(executor)


def _losses(executor: StageExecutor) -> list[MicrobatchLoss]:
    tokens = {executor.model.stage.name: executor.tokens}
    return [MicrobatchLoss(executor.loss_sum, executor.num_tokens, tokens)]
