"""The schedules around a user's forward step.

The forward step has Megatron's signature: it takes an iterator and a model and returns an output
and a function that computes the loss of the output. The whole forward step is one step of the
schedule. Order, accumulation and messages are the same as in `mimokit.experiment.train`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mimokit.config.user_code import ForwardStep
from mimokit.engine.data.batch import Batch
from mimokit.engine.pipeline.communicator import MultiModulePipelineCommunicator
from mimokit.engine.pipeline.executor import MicrobatchLoss
from mimokit.engine.pipeline.model import RankModel
from mimokit.engine.pipeline.steps import forward_backward_steps, forward_steps
from mimokit.engine.steps import Observer, StepGenerator, exhaust, loop_watcher, observed_by
from mimokit.engine.user_loop.models import SharedRanksModel, StageModel
from mimokit.engine.user_loop.stages import around_all_modules, with_forward_step
from mimokit.step_kinds import StepKind


def _watched(
    model: RankModel,
    steps: StepGenerator[list[MicrobatchLoss]],
    num_microbatches: int,
    observe: Observer | None,
) -> list[MicrobatchLoss]:
    """Run the steps; who watches the loop on this rank sees them.

    Raises:
        GradientOrderError: the gradients of the last step are still in the buffers.
    """
    for module in model.modules().values():
        module.gradient_order.begin_micro_batches()
    watcher = loop_watcher()
    if watcher is None:
        return exhaust(steps, observe)
    watcher.begin(model)
    observers = [watcher.observe] if observe is None else [watcher.observe, observe]
    losses = exhaust(steps, observed_by(observers))
    watcher.pause()
    watcher.count(model, losses, num_microbatches)
    return losses


def forward_backward_no_pipelining(
    *,
    forward_step_func: ForwardStep,
    data_iterator: Iterator[Batch],
    model: SharedRanksModel,
    num_microbatches: int,
    seq_length: int | None = None,
    forward_only: bool = False,
    observe: Observer | None = None,
) -> list[MicrobatchLoss]:
    """Run all micro-batches and leave summed, unreduced gradients in the buffers.

    Args:
        forward_step_func: runs the forward of one micro-batch.
        data_iterator: is handed to it.
        model: is handed to it.
        num_microbatches: micro-batches to run.
        seq_length: accepted because the source documents pass it; the shape of the batch decides.
        forward_only: leave out the backward half.
        observe: sees every step as it begins.

    Returns:
        One entry per micro-batch.

    Raises:
        ForwardStepError: the forward step raised, or returned something else.
        ValueError: the loss function does not return a sum and a number of tokens.
    """
    model.checks.begin_step()
    laid_out = around_all_modules(forward_step_func, model, data_iterator, num_microbatches)
    # The forward step reads: its iterator gives whole batches, which it slices itself.
    own = (StepKind.LOAD, StepKind.SLICE)
    if forward_only:
        return exhaust(forward_steps(None, laid_out, without=own), observe)
    return _watched(
        laid_out, forward_backward_steps(None, laid_out, without=own), num_microbatches, observe
    )


def forward_backward_1f1b_with_multimodule_communicator(
    *,
    forward_step_func: ForwardStep,
    data_iterator: Iterator[Batch] | None,
    model: StageModel,
    communicator: MultiModulePipelineCommunicator,
    num_microbatches: int,
    seq_length: int | None = None,
    forward_only: bool = False,
    observe: Observer | None = None,
) -> list[MicrobatchLoss]:
    """Run all micro-batches of a step and leave summed, unreduced gradients in the buffers.

    Args:
        forward_step_func: runs the forward of one micro-batch on this stage. Its iterator gives
            one batch: what the stage has read, or an empty one on a stage that reads none.
        data_iterator: gives the batches this rank reads, None where it reads none.
        model: what this rank holds.
        communicator: of the same plan.
        num_microbatches: of the plan.
        seq_length: accepted because the source documents pass it; the shape of the batch decides.
        forward_only: leave out the backward half.
        observe: sees every step as it begins.

    Returns:
        One entry: loss and tokens of this rank over all micro-batches.

    Raises:
        ValueError: the plan is for another number of micro-batches, or the loss function does not
            return a sum and a number of tokens.
        ForwardStepError: the forward step raised, or returned something else.
    """
    planned = model.laid_out.program.schedule.num_microbatches
    if num_microbatches != planned:
        raise ValueError(
            f"The plan is for {planned} micro-batches, not {num_microbatches}; plan the layout "
            "with as many as are to run."
        )
    laid_out = with_forward_step(model.laid_out, forward_step_func)
    laid_out = replace(laid_out, communicator=communicator)
    if forward_only:
        losses = exhaust(forward_steps(data_iterator, laid_out), observe)
    else:
        steps = forward_backward_steps(data_iterator, laid_out)
        losses = _watched(laid_out, steps, num_microbatches, observe)
    tokens = {
        name: sum(loss.module_tokens.get(name, 0) for loss in losses) for name in laid_out.modules()
    }
    return [
        MicrobatchLoss(
            sum(loss.loss_sum for loss in losses), sum(loss.num_tokens for loss in losses), tokens
        )
    ]
