"""The 1F1B schedule of modules on ranks of their own, as one call."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mimokit.engine.colocated.schedule import MicrobatchLoss
from mimokit.engine.data.batch import Batch
from mimokit.engine.pipeline.executor import StageExecutor, before_reduction, forward_only
from mimokit.engine.pipeline.model import HeterogeneousModel
from mimokit.engine.steps import Observer, StepGenerator, exhaust


def forward_backward_1f1b_with_multimodule_communicator(
    data_iterator: Iterator[Batch] | None,
    model: HeterogeneousModel,
    num_microbatches: int,
    forward_only: bool = False,
    observe: Observer | None = None,
) -> list[MicrobatchLoss]:
    """Run all micro-batches of a step and leave summed, unreduced gradients in the buffers.

    The communicator is the model's own, which has been built for the same plan. Gradients are
    finalized afterwards, and only then does the optimizer step.

    Args:
        data_iterator: gives the batches this rank reads, None where it reads nothing.
        model: what this rank holds.
        num_microbatches: of the plan.
        forward_only: leave out the backward half.
        observe: sees every step as it begins.

    Returns:
        One entry: loss and tokens of this rank over all micro-batches.

    Raises:
        ValueError: the plan is for another number of micro-batches, or a batch's placeholders do
            not match its rows.
    """
    planned = model.pipeline.schedule.num_microbatches
    if num_microbatches != planned:
        raise ValueError(
            f"The plan is for {planned} micro-batches, not {num_microbatches}; plan the layout "
            "with as many as are to run."
        )
    run = forward_steps if forward_only else forward_backward_steps
    return exhaust(run(data_iterator, model), observe)


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
