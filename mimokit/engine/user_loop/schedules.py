"""The schedules around a user's forward step.

The forward step has Megatron's signature: it takes an iterator and a model and returns an output
and a function that computes the loss of the output. The whole forward step is one step of the
schedule. Order, accumulation and messages are the same as in `mimokit.experiment.train`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from mimokit.engine.colocated.schedule import MicrobatchLoss, no_pipelining_steps
from mimokit.engine.data.batch import Batch
from mimokit.engine.parallel.gradients import get_module_to_grid_tuple
from mimokit.engine.parallel.loss import sum_and_tokens
from mimokit.engine.pipeline.base_stage import ModuleStage, StageInput, StageOutput
from mimokit.engine.pipeline.communicator import MultiModulePipelineCommunicator
from mimokit.engine.pipeline.executor import forward_backward_steps, forward_steps
from mimokit.engine.steps import Observer, Step, StepGenerator, exhaust
from mimokit.engine.user_loop.models import SharedRanksModel, StageModel
from mimokit.step_kinds import StepKind

LossFunction = Callable[[torch.Tensor], tuple[Any, ...]]
"""Output -> (sum of the losses of unmasked tokens, their number, anything else)."""

ForwardStep = Callable[[Any, Any], tuple[torch.Tensor, LossFunction]]
"""(data iterator, model) -> (output, loss function)."""


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
        One entry per micro-batch; its `module_tokens` are empty.

    Raises:
        ValueError: the loss function does not return a sum and a number of tokens.
    """
    run = partial(_microbatch, forward_step_func, data_iterator, model)
    if forward_only:
        with torch.no_grad():
            return [exhaust(run(number), observe) for number in range(num_microbatches)]
    modules = get_module_to_grid_tuple(model, model.laid_out.module_to_grid_map)
    return exhaust(no_pipelining_steps(run, modules, num_microbatches), observe)


def _microbatch(
    forward_step: ForwardStep,
    data_iterator: Iterator[Batch],
    model: SharedRanksModel,
    microbatch: int,
) -> StepGenerator[MicrobatchLoss]:
    yield Step(StepKind.FORWARD, None, microbatch)
    output, loss_function = forward_step(data_iterator, model)
    yield Step(StepKind.LOSS, model.language_module_name, microbatch)
    loss, tokens = sum_and_tokens(loss_function(output))
    if torch.is_grad_enabled():
        yield Step(StepKind.BACKWARD, None, microbatch)
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        assert model.language_model is not None
        model.language_model.num_tokens += tokens
    return MicrobatchLoss(float(loss.detach()), tokens, {})


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
    """
    planned = model.laid_out.pipeline.schedule.num_microbatches
    if num_microbatches != planned:
        raise ValueError(
            f"The plan is for {planned} micro-batches, not {num_microbatches}; plan the layout "
            "with as many as are to run."
        )
    stage = _UserStage(forward_step_func, model)
    laid_out = replace(model.laid_out, stage=stage, communicator=communicator)
    run = forward_steps if forward_only else forward_backward_steps
    return exhaust(run(data_iterator, laid_out), observe)


class _UserStage(ModuleStage):
    """A stage whose forward and loss are the user's."""

    def __init__(self, forward_step: ForwardStep, model: StageModel) -> None:
        stage = model.laid_out.stage
        super().__init__(stage.name, stage.wrapped, stage.first, stage.last)
        self._forward_step = forward_step
        self._model = model
        self._own = stage

    def forward(self, given: StageInput) -> StageOutput:
        """Call the forward step; its output is what the next stage takes."""
        return self._forward(given)

    def _forward(self, given: StageInput) -> StageOutput:
        self._model.received, self._model.computed = given, None
        self._output, self._loss_function = self._forward_step(
            iter([given.batch or {}]), self._model
        )
        if self._model.computed is None:
            raise ValueError(
                f"The forward step did not call its model on the stage of {self.name!r}."
            )
        if self.ends:
            return self._model.computed
        return replace(self._model.computed, tensor=self._output)

    def infer(self, given: Any) -> Any:
        """Return what this stage hands on."""
        return self._own.infer(given)

    @property
    def ends(self) -> bool:
        """Whether the language model ends here."""
        return self._own.ends

    def loss(self, output: StageOutput, batch: Batch) -> tuple[torch.Tensor, int] | None:
        """Return the user's loss at the end of the language model."""
        if not self.ends:
            return self._own.loss(output, batch)
        return sum_and_tokens(self._loss_function(self._output))

    def tokens(self, output: StageOutput, batch: Batch | None) -> int:
        """Count tokens."""
        return self._own.tokens(output, batch)
