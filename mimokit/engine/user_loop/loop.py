"""The batches of a user's training loop, and the schedules around its forward step.

The forward step has Megatron's signature: it takes an iterator and a model and returns an output
and a function that computes the loss of the output. It is one step of the schedule. Order,
accumulation and messages are the same as in `mimokit.experiment.train`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch.distributed as dist

from mimokit.architecture.tokens import tokens_per_item
from mimokit.config import DataConfig, MimoParallelismConfig
from mimokit.config.user_code import ForwardStep
from mimokit.engine.data.batch import Batch, check_tokens, to_device
from mimokit.engine.data.iterators import Order, iterate_batches
from mimokit.engine.data.sources import TrainingData
from mimokit.engine.device import rank_device
from mimokit.engine.megatron import HyperCommGrid
from mimokit.engine.parallel.grids import participating
from mimokit.engine.pipeline.communicator import MultiModulePipelineCommunicator
from mimokit.engine.pipeline.executor import MicrobatchLoss
from mimokit.engine.pipeline.model import RankModel
from mimokit.engine.pipeline.steps import forward_backward_steps, forward_steps
from mimokit.engine.steps import Observer, StepGenerator, exhaust, loop_watcher, observed_by
from mimokit.engine.user_loop.models import SharedRanksModel, StageModel
from mimokit.engine.user_loop.stages import around_all_modules, with_forward_step
from mimokit.planning.types import LayoutPlan
from mimokit.step_kinds import StepKind
from mimokit.units import counted


def get_data_iterator(
    model_config: MimoParallelismConfig,
    data_config: DataConfig,
    module_to_grid_map: Mapping[str, HyperCommGrid],
    *,
    plan: LayoutPlan,
    data: TrainingData,
    seed: int = 1234,
    order: Order | None = None,
) -> Iterator[Batch] | None:
    """Iterate over the batches of this rank in homogeneous or heterogeneous mode.

    Args:
        plan: of the same experiment, from `mimokit.plan`.
        data: gives the samples; for example `mimokit.engine.default_data(config)`.
        seed: of the order of the samples; `RuntimeConfig.seed` has the same default.
        order: of the samples within a micro-batch, see `order_of`.

    Returns:
        The batches, None on a stage that reads none.

    Raises:
        ValueError: the plan is colocated, or the data set is smaller than a micro-batch.
    """
    if plan.deployment_mode == "colocated":
        raise ValueError("The plan is colocated; call get_data_iterator_colocated.")
    batches = iterate_batches(
        plan, data_config, dist.get_rank(), data.train, data.collate_fn, seed, order
    )
    return None if batches is None else _checked(batches, model_config)


def get_data_iterator_colocated(
    model_config: MimoParallelismConfig,
    data_config: DataConfig,
    module_to_grid_map: Mapping[str, HyperCommGrid],
    *,
    plan: LayoutPlan,
    data: TrainingData,
    seed: int = 1234,
    order: Order | None = None,
) -> Iterator[Batch]:
    """Iterate over the batches that a rank reads once for all its modules.

    They hold the samples of the module with the fewest replicas; the forward step cuts them for
    the others, with `slice_modality` and `slice_text`.

    Arguments are those of `get_data_iterator`.

    Raises:
        ValueError: the modules have separate ranks, or the data set is smaller than a micro-batch.
    """
    rank, mine = dist.get_rank(), participating(module_to_grid_map)
    if len(mine) != len(module_to_grid_map):
        raise ValueError(
            f"Rank {rank} takes part in {mine} of {list(module_to_grid_map)}; call "
            "get_data_iterator where modules have separate ranks."
        )
    batches = iterate_batches(plan, data_config, rank, data.train, data.collate_fn, seed, order)
    assert batches is not None  # every rank has the modules that read
    return _checked(batches, model_config)


def _checked(batches: Iterator[Batch], config: MimoParallelismConfig) -> Iterator[Batch]:
    rows = {
        name: tokens_per_item(config.get_architecture(name)) for name in config.input_module_names
    }
    for batch in batches:
        check_tokens(batch, config.input_token_ids, rows)
        yield batch


def get_batch(data_iterator: Iterator[Batch] | None) -> Batch | None:
    """Take the next batch to this rank's device; None where there is no iterator.

    Raises:
        ValueError: placeholders and items of a sample do not agree.
    """
    return None if data_iterator is None else to_device(next(data_iterator), rank_device())


def _watched(
    model: RankModel,
    steps: StepGenerator[list[MicrobatchLoss]],
    num_microbatches: int,
    observe: Observer | None,
) -> list[MicrobatchLoss]:
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
        seq_length: accepted because the source documents pass it; the shape of the batch decides.
        forward_only: leave out the backward half.

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

    The iterator of the forward step gives one batch: what the stage has read, or an empty one on a
    stage that reads none. Other arguments are those of `forward_backward_no_pipelining`.

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
            f"The plan is for {counted(planned, 'micro-batch')}, not {num_microbatches}; plan the "
            "layout with as many as are to run."
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
            sum(loss.loss_sum for loss in losses),
            sum(loss.num_tokens for loss in losses),
            tokens,
            sum(loss.further_loss_sum for loss in losses),
            sum(loss.further_tokens for loss in losses),
        )
    ]
