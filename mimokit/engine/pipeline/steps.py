"""The steps of a rank over all micro-batches: forward and backward, forward alone, logits."""

import contextlib
from collections.abc import Collection, Iterator

import torch

from mimokit.engine.data.batch import Batch
from mimokit.engine.pipeline.executor import LogitsObserver, MicrobatchLoss, StageExecutor
from mimokit.engine.pipeline.model import RankModel
from mimokit.engine.steps import StepGenerator, exhaust
from mimokit.planning.schedule import Action
from mimokit.step_kinds import FORWARD_HALF, UPDATE, StepKind


def before_reduction(model: RankModel) -> tuple[Action, ...]:
    """Return the actions of this rank in one step up to the reduction of gradients."""
    return tuple(a for a in model.actions if a.kind not in UPDATE)


def forward_only(model: RankModel) -> tuple[Action, ...]:
    """Return the forward actions of this rank in one step."""
    return tuple(a for a in before_reduction(model) if a.kind in FORWARD_HALF)


def forward_backward_steps(
    data_iterator: Iterator[Batch] | None, model: RankModel, without: Collection[StepKind] = ()
) -> StepGenerator[list[MicrobatchLoss]]:
    """Yield the steps of all micro-batches; they leave summed, unreduced gradients in the buffers.

    Args:
        without: kinds of actions that the stages of the model do themselves.

    Raises:
        ValueError: if a batch's placeholders do not match its items.
        ReplicaMismatchError: if an encoder's tensor-parallel ranks disagree, on shared ranks.
    """
    executor = StageExecutor(model, data_iterator, next(model.step_numbers))
    yield from executor.run([a for a in before_reduction(model) if a.kind not in without])
    if model.stages:
        ended = model.modules()[model.last_stage.name]
        ended.num_tokens += sum(loss.num_tokens for loss in executor.losses)
    executor.read(len(executor.losses))
    return executor.losses


def forward_steps(
    data_iterator: Iterator[Batch] | None, model: RankModel, without: Collection[StepKind] = ()
) -> StepGenerator[list[MicrobatchLoss]]:
    """Yield the steps of the forward of all micro-batches; see `forward_backward_steps`."""
    executor = StageExecutor(model, data_iterator)
    with torch.no_grad():
        yield from executor.run([a for a in forward_only(model) if a.kind not in without])
    executor.read(len(executor.losses))
    return executor.losses


@contextlib.contextmanager
def _evaluating(model: RankModel) -> Iterator[None]:
    """Run a block in which the modules do not train, so that nothing is dropped."""
    modules = {module: module.training for module in model.modules().values()}
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for module, training in modules.items():
            module.train(training)


def observe_logits(
    data_iterator: Iterator[Batch] | None,
    model: RankModel,
    num_microbatches: int,
    observe: LogitsObserver,
) -> None:
    """Run forward over micro-batches, of as many steps as that takes.

    Args:
        observe: called with logits [samples, tokens, vocabulary / TP] and batch where they are.
    """
    in_step = model.program.schedule.num_microbatches
    actions = [action for action in forward_only(model) if action.kind != StepKind.LOSS]
    with torch.no_grad(), _evaluating(model):
        for left in range(num_microbatches, 0, -in_step):
            executor = StageExecutor(model, data_iterator)
            todo = [a for a in actions if a.microbatch is not None and a.microbatch < left]
            exhaust(executor.run(todo, observe))
            executor.read(min(left, in_step))
