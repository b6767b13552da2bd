"""The schedules of `mimokit.experiment.train` around a forward step of the user's.

The whole forward step is one step of the schedule, and so is its backward. In shared-rank modes the
steps of encoders are part of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from mimokit.config.user_code import ForwardStep
from mimokit.engine.colocated.model import ColocatedModel
from mimokit.engine.colocated.schedule import MicrobatchLoss, no_pipelining_steps, shares_of
from mimokit.engine.data.batch import Batch, take_checked_batch, to_device
from mimokit.engine.device import rank_device
from mimokit.engine.parallel.gradients import get_module_to_grid_tuple
from mimokit.engine.pipeline.executor import forward_backward_steps
from mimokit.engine.pipeline.model import HeterogeneousModel
from mimokit.engine.steps import Step, StepGenerator
from mimokit.engine.user_loop.forward import OneBatch
from mimokit.engine.user_loop.models import SharedRanksModel, StageModel
from mimokit.engine.user_loop.schedules import UserStage, microbatch_steps
from mimokit.step_kinds import StepKind


def shared_ranks_steps(
    data_iterator: Iterator[Batch], model: ColocatedModel, forward_step: ForwardStep
) -> StepGenerator[list[MicrobatchLoss]]:
    """Yield the steps of all micro-batches of modules that share their ranks.

    Args:
        data_iterator: yields the batches of this rank.
        model: the model on this rank.
        forward_step: of the user. Its iterator gives the samples that this rank computes: of every
            encoder in `modality_inputs`, of the language model in the rest.

    Raises:
        ForwardStepError: see `call_forward_step`.
        ValueError: a batch's placeholders do not match its items, or the loss function does not
            return a sum and a number of tokens.
    """
    run = partial(_microbatch, data_iterator, SharedRanksModel(model), forward_step)
    modules = get_module_to_grid_tuple(model.model, model.module_to_grid_map)
    return no_pipelining_steps(run, modules, model.plan.batch.num_microbatches)


def _microbatch(
    data_iterator: Iterator[Batch],
    model: SharedRanksModel,
    forward_step: ForwardStep,
    microbatch: int,
) -> StepGenerator[MicrobatchLoss]:
    laid_out = model.laid_out
    yield Step(StepKind.LOAD, None, microbatch)
    loaded = take_checked_batch(data_iterator, laid_out.special_token_ids, laid_out.tokens_per_item)
    loaded = to_device(loaded, rank_device())
    yield Step(StepKind.SLICE, None, microbatch)
    given = OneBatch(shares_of(laid_out, loaded))
    loss = yield from microbatch_steps(forward_step, given, model, microbatch)
    return replace(loss, module_tokens=model.module_tokens)


def pipeline_steps(
    data_iterator: Iterator[Batch] | None, model: HeterogeneousModel, forward_step: ForwardStep
) -> StepGenerator[list[MicrobatchLoss]]:
    """Yield the steps of all micro-batches of modules that have separate ranks.

    Args:
        data_iterator: gives the batches this rank reads, None where it reads none.
        model: the stage on this rank.
        forward_step: of the user. Its iterator gives what the stage has read, or an empty batch.

    Raises:
        ForwardStepError: see `call_forward_step`.
        ValueError: the loss function does not return a sum and a number of tokens.
    """
    stage = UserStage(forward_step, StageModel(model))
    return forward_backward_steps(data_iterator, replace(model, stage=stage))
