"""The schedules around a user's forward step.

The forward step has Megatron's signature: it takes an iterator and a model and returns an output
and a function that computes the loss of the output. The whole forward step is one step of the
schedule. Order, accumulation and messages are the same as in `mimokit.experiment.train`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from mimokit.config.user_code import ForwardStep
from mimokit.engine.colocated.schedule import MicrobatchLoss, no_pipelining_steps
from mimokit.engine.data.batch import Batch
from mimokit.engine.parallel.gradients import get_module_to_grid_tuple
from mimokit.engine.pipeline.base_stage import ModuleStage, StageInput, StageOutput
from mimokit.engine.pipeline.communicator import MultiModulePipelineCommunicator
from mimokit.engine.pipeline.executor import forward_backward_steps, forward_steps
from mimokit.engine.steps import Observer, Step, StepGenerator, exhaust
from mimokit.engine.user_loop.forward import (
    ForwardStepError,
    OneBatch,
    call_forward_step,
    loss_of_output,
)
from mimokit.engine.user_loop.models import SharedRanksModel, StageModel
from mimokit.step_kinds import StepKind


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
        ForwardStepError: the forward step raised, or returned something else.
        ValueError: the loss function does not return a sum and a number of tokens.
    """
    run = partial(microbatch_steps, forward_step_func, data_iterator, model)
    if forward_only:
        with torch.no_grad():
            return [exhaust(run(number), observe) for number in range(num_microbatches)]
    modules = get_module_to_grid_tuple(model, model.laid_out.module_to_grid_map)
    return exhaust(no_pipelining_steps(run, modules, num_microbatches), observe)


def microbatch_steps(
    forward_step: ForwardStep,
    data_iterator: Iterator[Batch],
    model: SharedRanksModel,
    microbatch: int,
) -> StepGenerator[MicrobatchLoss]:
    """Yield the steps of one micro-batch of modules that share their ranks."""
    language = model.language_module_name
    yield Step(StepKind.FORWARD, language, microbatch)
    output, loss_function = call_forward_step(forward_step, data_iterator, model)
    yield Step(StepKind.LOSS, language, microbatch)
    loss, tokens = loss_of_output(forward_step, output, loss_function)
    if torch.is_grad_enabled():
        if loss.requires_grad:
            yield Step(StepKind.BACKWARD, language, microbatch)
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
        ForwardStepError: the forward step raised, or returned something else.
    """
    planned = model.laid_out.pipeline.schedule.num_microbatches
    if num_microbatches != planned:
        raise ValueError(
            f"The plan is for {planned} micro-batches, not {num_microbatches}; plan the layout "
            "with as many as are to run."
        )
    stage = UserStage(forward_step_func, model)
    laid_out = replace(model.laid_out, stage=stage, communicator=communicator)
    run = forward_steps if forward_only else forward_backward_steps
    return exhaust(run(data_iterator, laid_out), observe)


class UserStage(ModuleStage):
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
        self._model.take(given)
        batch = OneBatch(given.batch or {})
        self._output, self._loss_function = call_forward_step(
            self._forward_step, batch, self._model
        )
        calls, computed = self._model.calls, self._model.computed
        if calls != 1 or computed is None:
            found = f"called its model {calls} times" if calls else "did not call its model"
            raise ForwardStepError(
                f"The forward step {found} on the stage of {self.name!r}; it must call it once."
            )
        return computed if self.ends else replace(computed, tensor=self._sent(computed.tensor))

    def _sent(self, computed: torch.Tensor) -> torch.Tensor:
        """Return what the next stage takes.

        Raises:
            ForwardStepError: it is not as the next stage expects it.
        """
        if isinstance(self._output, torch.Tensor) and self._output.shape == computed.shape:
            return self._output
        found = self._output
        shape = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise ForwardStepError(
            f"The forward step returned {shape} as its output on the stage of {self.name!r}; it "
            f"must return what its model returned there, {list(computed.shape)}, for the next "
            "stage."
        )

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
        return loss_of_output(self._forward_step, self._output, self._loss_function)

    def tokens(self, output: StageOutput, batch: Batch | None) -> int:
        """Count tokens."""
        return self._own.tokens(output, batch)
