"""The state of micro-batches on a stage: heads of text, audio and vision, and packing.

Packing has one branch per edge. It waits until all branches that the plan expects of a micro-batch
have arrived, computes, and returns each branch its part of the gradient from one backward. For a
modality without input no message is sent and no stage waits.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch

from mimokit.engine.megatron import WeightProducts
from mimokit.engine.pipeline.base_stage import (
    PipelineStage,
    ShapeMismatchError,
    StageInput,
    StageOutput,
)
from mimokit.engine.ragged import Ragged
from mimokit.planning.pipeline import PipelinePlan
from mimokit.planning.schedule import StageEdge
from mimokit.units import counted

ModalType = Literal["text", "audio", "vision", "packing"]


@dataclass
class Microbatch:
    """The state of a micro-batch between its actions.

    Attributes:
        given: the branches that have arrived, by edge, and the batch.
        output: the output of the stage, until its backward.
        gradients: of the output, one per outgoing edge.
        products: gradients of weights that are computed later; None: in the backward.
        absent: edges over which nothing comes although the plan has it: the batch, which all ranks
            concerned have read, has no input of the modality.
    """

    given: StageInput
    output: StageOutput | None = None
    loss: torch.Tensor | None = None
    gradients: list[torch.Tensor] = field(default_factory=list)
    products: WeightProducts | None = None
    absent: set[int] = field(default_factory=set)


def _putting_off(state: Microbatch) -> AbstractContextManager[None]:
    return nullcontext() if state.products is None else state.products.put_off()


def modal_type(pipeline: PipelinePlan, stage_index: int) -> ModalType:
    """Return the type of a stage: packing where it receives the output of other modules."""
    stage = pipeline.graph.stages[stage_index]
    incoming = pipeline.graph.incoming[stage_index]
    if any(pipeline.graph.stages[edge.source].module != stage.module for edge in incoming):
        return "packing"
    return dict(pipeline.modalities)[stage.module]


class PipelineStageMultimodality:
    """Stores the branches of every micro-batch, and runs the stage once all have arrived.

    Attributes:
        in_flight: micro-batch -> its state.

    Args:
        step: optimizer steps before this one.
    """

    def __init__(
        self, pipeline: PipelinePlan, stage_index: int, stage: PipelineStage, step: int = 0
    ) -> None:
        self.stage = stage
        self._step = step
        self.modal_type = modal_type(pipeline, stage_index)
        self.in_flight: dict[int, Microbatch] = {}
        self._index = stage_index
        self._incoming = pipeline.graph.incoming[stage_index]
        self._work = pipeline.schedule.work
        self._is_split = stage_index in pipeline.schedule.split
        self._slots = pipeline.slots

    def expects(self, microbatch: int) -> tuple[StageEdge, ...]:
        """Return the branches of a micro-batch."""
        carried = self._work.carry_forward
        return tuple(edge for edge in self._incoming if carried[edge.index, microbatch])

    def missing(self, microbatch: int) -> tuple[StageEdge, ...]:
        """Return the branches that have not arrived."""
        state = self._of(microbatch)
        known = state.given.received.keys() | state.absent
        return tuple(edge for edge in self.expects(microbatch) if edge.index not in known)

    def go_without(self, microbatch: int, edge: StageEdge) -> None:
        """Note that nothing comes over an edge."""
        self._of(microbatch).absent.add(edge.index)

    def take_batch(self, microbatch: int, batch: dict[str, object]) -> None:
        """Store the batch that this rank read."""
        self._of(microbatch).given.batch = batch

    def take(self, microbatch: int, edge: StageEdge, message: Ragged) -> None:
        """Store a branch.

        Raises:
            ShapeMismatchError: its number of tensors differs from the planned slots.
        """
        planned = len(self._slots.edges[edge.index]) - 1
        sent = len(message.known)
        if sent != planned:
            raise ShapeMismatchError(
                f"{edge.modality!r} sent {counted(sent, 'tensor')}, but the plan has "
                f"{counted(planned, 'slot')} for them."
            )
        trained = bool(self._work.carry_backward[edge.index, microbatch])
        message.tensor.requires_grad_(trained and torch.is_grad_enabled())
        self._of(microbatch).given.received[edge.index] = message

    def forward_one_chunk(self, microbatch: int) -> Microbatch:
        """Compute a micro-batch.

        Raises:
            RuntimeError: a branch is missing.
        """
        if missing := self.missing(microbatch):
            names = ", ".join(repr(edge.modality) for edge in missing)
            raise RuntimeError(f"Micro-batch {microbatch} still waits for {names}.")
        state = self._of(microbatch)
        # A micro-batch without backward stores no activations.
        graded = self._has_backward(microbatch) and torch.is_grad_enabled()
        if graded and self._is_split and self._work.weights[self._index, microbatch]:
            state.products = WeightProducts()
        with torch.set_grad_enabled(graded), _putting_off(state):
            state.output = self.stage.forward(state.given)
        return state

    def trains(self, microbatch: int, output: StageOutput) -> bool:
        """Return whether an output takes a gradient.

        Megatron's projector returns a tensor that requires one, trained or not.
        """
        return self._has_backward(microbatch) and output.tensor.requires_grad

    def _has_backward(self, microbatch: int) -> bool:
        return bool(self._work.backward[self._index, microbatch])

    def take_gradient(self, microbatch: int, gradient: torch.Tensor) -> None:
        """Store the gradient of the output that was received over one edge."""
        self._of(microbatch).gradients.append(gradient)

    def backward_one_chunk(self, microbatch: int) -> None:
        """Run one backward for all branches, from a loss, received gradients, or both."""
        state = self._of(microbatch)
        assert state.output is not None
        roots: dict[torch.Tensor, torch.Tensor | None] = {}
        if state.loss is not None and state.loss.requires_grad:
            scales = [module.loss_scale for module in self.stage.modules]
            roots[state.loss] = torch.full_like(state.loss, max(scales, default=1.0))
        output = state.output.tensor
        if (state.loss is None or state.gradients) and output.requires_grad:
            roots[output] = sum(state.gradients[1:], state.gradients[0])
        if roots:
            with _putting_off(state):
                torch.autograd.backward(list(roots), list(roots.values()))
        # From here on only the gradients of the inputs are needed.
        state.output, state.loss, state.gradients = None, None, []

    def add_weight_gradients(self, microbatch: int) -> None:
        """Compute the gradients of weights that the backward of a micro-batch has put off."""
        products = self._of(microbatch).products
        if products is not None:
            products.add()

    def gradient(self, microbatch: int, edge: StageEdge) -> torch.Tensor:
        """Return the part of the gradient that belongs to a branch."""
        branch = self._of(microbatch).given.received[edge.index].tensor
        if branch.grad is None:  # no output depends on it, as on a replica without items
            branch.grad = torch.zeros_like(branch)
        return branch.grad

    def _of(self, microbatch: int) -> Microbatch:
        if microbatch not in self.in_flight:
            given = StageInput(None, step=self._step, microbatch=microbatch)
            self.in_flight[microbatch] = Microbatch(given)
        return self.in_flight[microbatch]
