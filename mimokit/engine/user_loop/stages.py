"""Stages whose forward and loss are a forward step of the user's, for the executor.

The whole forward step is one step of the schedule, and so is its backward. On shared ranks the
steps of encoders are part of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from mimokit.config.user_code import ForwardStep
from mimokit.engine.data.batch import Batch
from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.engine.pipeline.base_stage import ModuleStage, StageInput, StageOutput
from mimokit.engine.pipeline.model import RankModel
from mimokit.engine.user_loop.forward import (
    ForwardStepError,
    OneBatch,
    call_forward_step,
    loss_of_output,
)
from mimokit.engine.user_loop.models import MimoModelOnRank, SharedRanksModel, StageModel
from mimokit.planning.pipeline import shared_program


def with_forward_step(model: RankModel, forward_step: ForwardStep) -> RankModel:
    """Return a model that runs a forward step of the user's.

    Args:
        model: the model on this rank.
        forward_step: its iterator gives, on shared ranks, the samples that this rank computes: of
            every encoder in `modality_inputs`, of the language model in the rest; on a stage what
            it has read, or an empty batch.
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
        forward_step: of the user.
        model: is handed to it.
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
        forward_step: of the user.
        model: is handed to it.
        stage: of mimokit, which the model runs last.
    """

    def __init__(
        self, forward_step: ForwardStep, model: MimoModelOnRank, stage: ModuleStage
    ) -> None:
        super().__init__(stage.name, stage.wrapped, stage.first, stage.last)
        self._forward_step = forward_step
        self._model = model
        self._stage = stage

    def forward(self, given: StageInput) -> StageOutput:
        """Call the forward step; the random states are those of the stages inside."""
        return self._forward(given)

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


class UserStageOfPipeline(UserStage):
    """A forward step around one stage of a pipeline."""

    _model: StageModel

    def _forward(self, given: StageInput) -> StageOutput:
        self._model.take(given)
        self._call(OneBatch(given.batch or {}))
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

    def tokens(self, output: StageOutput, batch: Batch | None) -> int:
        """Count tokens."""
        return self._stage.tokens(output, batch)


class UserStageOfAllModules(UserStage):
    """A forward step around all modules of shared ranks.

    Args:
        forward_step: of the user.
        model: is handed to it.
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

    def _forward(self, given: StageInput) -> StageOutput:
        self._call(self._iterator or OneBatch(given.batch or {}))
        return StageOutput(torch.empty(0), [])

    @property
    def modules(self) -> Sequence[ModuleDataParallel]:
        """All modules on this rank."""
        return tuple(self._model.laid_out.modules().values())

    def module_tokens(self, output: StageOutput, batch: Batch | None) -> dict[str, int]:
        """Return the tokens that the modules computed in the last call."""
        return self._model.module_tokens
