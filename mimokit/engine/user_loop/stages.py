"""Stages whose forward and loss are a forward step of the user's, for the executor.

The whole forward step is one step of the schedule, and so is its backward. On shared ranks the
steps of encoders are part of them.
"""

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mimokit.config.user_code import ForwardStep
from mimokit.engine.data.batch import Batch
from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.engine.parallel.loss import sum_and_tokens
from mimokit.engine.pipeline.base_stage import (
    FurtherLoss,
    ModuleStage,
    Pass,
    StageInput,
    StageOutput,
    StagePlace,
)
from mimokit.engine.pipeline.model import RankModel
from mimokit.engine.user_loop.models import MimoModelOnRank, SharedRanksModel, StageModel
from mimokit.planning.pipeline import shared_program

_PACKAGE = Path(__file__).parents[2]


class ForwardStepError(RuntimeError):
    """A forward step of the user's raised, or returned something else than it must."""


class OneBatch(Iterator[Batch]):
    """The data iterator of one micro-batch in `train` and `verify`: it gives one batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch: Batch | None = dict(batch)

    def __next__(self) -> Batch:
        """Return the batch.

        Raises:
            ForwardStepError: it has been taken.
        """
        if self._batch is None:
            raise ForwardStepError(
                "The forward step took a second batch from its data iterator; it is called for "
                "every micro-batch and must take one."
            )
        batch, self._batch = self._batch, None
        return batch


def call_forward_step(
    forward_step: ForwardStep, data_iterator: Any, model: torch.nn.Module
) -> tuple[Any, Any]:
    """Return the output of a micro-batch and its loss function.

    Raises:
        ForwardStepError: it raised outside of mimokit, or returned something else.
    """
    returned = _called("forward step", forward_step, data_iterator, model)
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise ForwardStepError(
            f"The forward step {_name(forward_step)} returned {_described(returned)}; it must "
            "return two things: the output of the model, and a function of it that returns the "
            "sum of the losses and the number of their tokens."
        )
    output, loss_function = returned
    return output, loss_function


def loss_of_output(
    forward_step: ForwardStep, output: Any, loss_function: Any
) -> tuple[torch.Tensor, float]:
    """Return the sum of the losses of a micro-batch and the number of their tokens.

    Raises:
        ForwardStepError: the loss function is not a function, or raised outside of mimokit.
        ValueError: it returned something else than a sum and a number of tokens.
    """
    if not callable(loss_function):
        raise ForwardStepError(
            f"The forward step {_name(forward_step)} returned {_described(loss_function)} as its "
            "loss function; it must be a function of the output that returns the sum of the "
            "losses and the number of their tokens."
        )
    return sum_and_tokens(_called("loss function", loss_function, output))


def _called(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user's; an error of mimokit or of a collective stays as it is."""
    try:
        return function(*arguments)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]
        if isinstance(error, ForwardStepError) or any(_ours(frame) for frame in frames):
            error.add_note(f"In the {what} {_name(function)}.")
            raise
        where = f" in line {frames[0].lineno} of {frames[0].filename}" if frames else ""
        raise ForwardStepError(
            f"The {what} {_name(function)} raised {type(error).__name__}{where}: {error}"
        ) from error


def _ours(frame: traceback.FrameSummary) -> bool:
    return Path(frame.filename).is_relative_to(_PACKAGE)


def _name(function: Any) -> str:
    inner = getattr(function, "func", function)  # of a partial
    return str(getattr(inner, "__qualname__", type(inner).__name__))


def _described(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def with_forward_step(model: RankModel, forward_step: ForwardStep) -> RankModel:
    """Return a model that runs a forward step of the user's.

    The iterator of the step gives, on shared ranks, the samples that this rank computes; on a stage
    what it has read, or an empty batch.
    """
    if model.communicator is None:
        return around_all_modules(forward_step, SharedRanksModel(model), None)
    ((index, stage),) = model.stages.items()
    return replace(
        model, stages={index: UserStageOfPipeline(forward_step, StageModel(model), stage)}
    )


def around_all_modules(
    forward_step: ForwardStep,
    model: SharedRanksModel,
    data_iterator: Iterator[Batch] | None,
    num_microbatches: int | None = None,
) -> RankModel:
    """Return a model on shared ranks whose only stage is a forward step.

    Args:
        data_iterator: is handed to it; None: the schedule reads the batches.
        num_microbatches: None: those of the plan.
    """
    laid_out = model.laid_out
    plan, language = laid_out.plan, laid_out.language_module_name
    count = num_microbatches or plan.batch.num_microbatches
    program = shared_program(plan.topology, [language], plan.modules, count, {})
    stages = {0: UserStageOfAllModules(forward_step, model, data_iterator)}
    return replace(laid_out, plan=replace(plan, program=program), stages=stages)


class UserStage(ModuleStage):
    """Calls the forward step of the user's, and the loss function that it returns.

    Args:
        stage: of mimokit, which the model runs last.
    """

    def __init__(
        self, forward_step: ForwardStep, model: MimoModelOnRank, stage: ModuleStage
    ) -> None:
        super().__init__(StagePlace(stage.name, stage.wrapped, stage.first, stage.last))
        self._forward_step = forward_step
        self._model = model
        self._stage = stage

    def forward(self, given: StageInput) -> StageOutput:
        """Call the forward step; the random states are those of the stages inside."""
        return self._forward(given, Pass())

    def _call(self, data_iterator: Iterator[Batch]) -> None:
        self._output, self._loss_function = call_forward_step(
            self._forward_step, data_iterator, self._model
        )

    def infer(self, given: Any) -> Any:
        """Return what this stage hands on."""
        return self._stage.infer(given)

    @property
    def ends(self) -> bool:
        """Whether the language model ends here."""
        return self._stage.ends

    def loss(self, output: StageOutput, batch: Batch | None) -> tuple[torch.Tensor, float] | None:
        """Return the user's loss at the end of the language model."""
        if not self.ends:
            return self._stage.loss(output, batch)
        return loss_of_output(self._forward_step, self._output, self._loss_function)

    def further_loss(self, output: StageOutput, batch: Batch | None) -> FurtherLoss | None:
        """Return the loss of tokens further on of the last call, or that of images."""
        return self._model.further if self.ends else self._stage.further_loss(output, batch)


class UserStageOfPipeline(UserStage):
    """A forward step around one stage of a pipeline."""

    _model: StageModel

    def _forward(self, given: StageInput, told: Pass) -> StageOutput:
        self._model.take(given)
        self._call(OneBatch(given.batch or {}))
        calls, computed = self._model.calls, self._model.computed
        if calls != 1 or computed is None:
            did = f"called its model {calls} times" if calls else "did not call its model"
            raise ForwardStepError(
                f"The forward step {did} on the stage of {self.name!r}; it must call it once."
            )
        return computed if self.ends else replace(computed, tensor=self._sent(computed.tensor))

    def _sent(self, computed: torch.Tensor) -> torch.Tensor:
        if isinstance(self._output, torch.Tensor) and self._output.shape == computed.shape:
            return self._output
        output = self._output
        shape = list(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise ForwardStepError(
            f"The forward step returned {shape} as its output on the stage of {self.name!r}; it "
            f"must return what its model returned there, {list(computed.shape)}, for the next "
            "stage."
        )

    def tokens(self, output: StageOutput, batch: Batch | None) -> int:
        """Count tokens."""
        return self._stage.tokens(output, batch)


class UserStageOfAllModules(UserStage):
    """A forward step around all modules of shared ranks.

    Args:
        data_iterator: is handed to it where the schedule reads no batches.
    """

    _model: SharedRanksModel

    def __init__(
        self,
        forward_step: ForwardStep,
        model: SharedRanksModel,
        data_iterator: Iterator[Batch] | None = None,
    ) -> None:
        super().__init__(forward_step, model, model.laid_out.last_stage)
        self._iterator = data_iterator

    def _forward(self, given: StageInput, told: Pass) -> StageOutput:
        self._model.place = given
        self._call(self._iterator or OneBatch(given.batch or {}))
        return StageOutput(torch.empty(0))

    @property
    def modules(self) -> Sequence[ModuleDataParallel]:
        """All modules on this rank."""
        return tuple(self._model.laid_out.modules().values())

    def module_tokens(self, output: StageOutput, batch: Batch | None) -> dict[str, int]:
        """Return the tokens that the modules computed in the last call."""
        return self._model.module_tokens
