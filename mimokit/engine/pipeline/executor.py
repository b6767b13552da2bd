"""Executes the planned schedule on one rank, action by action, and the 1F1B schedule on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from mimokit.engine.colocated.schedule import MicrobatchLoss
from mimokit.engine.data.batch import Batch, check_tokens, to_device
from mimokit.engine.device import rank_device
from mimokit.engine.pipeline.base_stage import PipelineStage
from mimokit.engine.pipeline.messages import StageMessage
from mimokit.engine.pipeline.microbatches import Microbatch, PipelineStageMultimodality
from mimokit.engine.pipeline.model import HeterogeneousModel
from mimokit.engine.steps import Step, StepGenerator
from mimokit.planning.pipeline import PipelinePlan
from mimokit.planning.schedule import Action, StageEdge
from mimokit.step_kinds import FORWARD_HALF, UPDATE, StepKind

LogitsObserver = Callable[[torch.Tensor, Batch], None]


class Communicator(Protocol):
    """Sends and receives messages over edges; see `MultiModulePipelineCommunicator`."""

    def send(self, message: StageMessage, edge: StageEdge, microbatch: int, direction: Any) -> None:
        """Start sending a message and return."""

    def receive(self, edge: StageEdge, microbatch: int, direction: Any) -> StageMessage:
        """Wait for a message."""

    def wait(self) -> None:
        """Wait until all sent messages have arrived."""


class StagedModel(Protocol):
    """The attributes of a model that an executor reads; see `HeterogeneousModel`."""

    @property
    def pipeline(self) -> PipelinePlan:
        """The planned order of the stages' actions."""

    @property
    def stage(self) -> PipelineStage:
        """The computation of this rank."""

    @property
    def stage_index(self) -> int:
        """Index in the stage graph."""

    @property
    def communicator(self) -> Communicator:
        """The communicator of this rank."""

    @property
    def special_token_ids(self) -> Mapping[str, int]:
        """Modality -> placeholder token id."""

    @property
    def tokens_per_item(self) -> Mapping[str, int]:
        """Modality -> number of embeddings per item."""


class StageExecutor:
    """Runs the actions of one stage and keeps its micro-batches until the step ends.

    Args:
        model: the model on this rank.
        data_iterator: yields the batches of this rank; None on a rank that reads no data.
    """

    def __init__(self, model: StagedModel, data_iterator: Iterator[Batch] | None) -> None:
        self.model = model
        self.loss_sum = 0.0
        self.num_tokens = 0
        self.tokens = 0
        self._iterator = data_iterator
        self._batches_read = 0
        self._stage = PipelineStageMultimodality(model.pipeline, model.stage_index, model.stage)
        self._edges = {edge.index: edge for edge in model.pipeline.graph.edges}
        self._do = {
            StepKind.LOAD: self._load,
            StepKind.RECEIVE_FORWARD: self._receive_forward,
            StepKind.FORWARD: self._forward,
            StepKind.SEND_FORWARD: self._send_forward,
            StepKind.RECEIVE_BACKWARD: self._receive_backward,
            StepKind.BACKWARD: self._backward,
            StepKind.SEND_BACKWARD: self._send_backward,
        }

    @property
    def in_flight(self) -> Mapping[int, Microbatch]:
        """Micro-batch -> its state, for all micro-batches in flight."""
        return self._stage.in_flight

    def run(
        self, actions: Sequence[Action], observe_logits: LogitsObserver | None = None
    ) -> StepGenerator[None]:
        """Yield a step before each action, then run it; all sent messages have arrived at the end.

        Args:
            actions: the actions up to the reduction of gradients, in the order of the plan.
            observe_logits: called with logits and batch of every micro-batch at the end of the
                language model, where no loss is computed then.

        Raises:
            RuntimeError: an action failed; stage, micro-batch and action are noted on the error.
        """
        self._observe_logits = observe_logits
        stage = self.model.stage.name
        for action in actions:
            function = self._do[action.kind]
            yield Step(action.kind, stage, action.microbatch, function)
            try:
                function(action)
            except Exception as error:
                error.add_note(self._where(action))
                raise
        yield Step(StepKind.WAIT, stage)
        self.model.communicator.wait()
        self._read(self.model.pipeline.schedule.num_microbatches)
        self._stage.in_flight.clear()

    def _where(self, action: Action) -> str:
        stage = self.model.pipeline.graph.stages[self.model.stage_index]
        return f"On rank {dist.get_rank()}, {stage}, in the action: {action}."

    def _place(self, action: Action) -> tuple[StageEdge, int]:
        assert action.edge is not None
        assert action.microbatch is not None
        return self._edges[action.edge], action.microbatch

    def _read(self, stop: int) -> Batch | None:
        """Read batches up to a micro-batch and return its batch; the others have no work here."""
        batch = None
        while self._iterator is not None and self._batches_read < stop:
            batch = next(self._iterator)
            self._batches_read += 1
        return batch

    def _load(self, action: Action) -> None:
        assert action.microbatch is not None
        batch = self._read(action.microbatch + 1)
        assert batch is not None
        check_tokens(batch, self.model.special_token_ids, self.model.tokens_per_item)
        self._stage.take_batch(action.microbatch, to_device(batch, rank_device()))

    def _receive_forward(self, action: Action) -> None:
        edge, microbatch = self._place(action)
        message = self.model.communicator.receive(edge, microbatch, 0)
        self._stage.take(microbatch, edge, message)

    def _forward(self, action: Action) -> None:
        assert action.microbatch is not None
        state, stage = self._stage.forward_one_chunk(action.microbatch), self.model.stage
        assert state.output is not None
        batch = state.given.batch
        self.tokens += stage.tokens(state.output, batch)
        if batch is None:
            return
        if self._observe_logits is not None:
            if stage.ends and state.output.logits is not None:
                self._observe_logits(state.output.logits, batch)
            return
        self._lose(state, stage.loss(state.output, batch))

    def _lose(self, state: Microbatch, found: tuple[torch.Tensor, int] | None) -> None:
        if found is not None:
            state.loss, state.num_tokens = found
            self.loss_sum += float(state.loss.detach())
            self.num_tokens += state.num_tokens

    def _send_forward(self, action: Action) -> None:
        edge, microbatch = self._place(action)
        output = self.in_flight[microbatch].output
        assert output is not None
        message = StageMessage([output.tensor.detach(), *output.integers], output.counts)
        self.model.communicator.send(message, edge, microbatch, 0)

    def _receive_backward(self, action: Action) -> None:
        edge, microbatch = self._place(action)
        message = self.model.communicator.receive(edge, microbatch, 1)
        self._stage.take_gradient(microbatch, message.rows[0])

    def _backward(self, action: Action) -> None:
        assert action.microbatch is not None
        self._stage.backward_one_chunk(action.microbatch)

    def _send_backward(self, action: Action) -> None:
        edge, microbatch = self._place(action)
        gradient = self._stage.gradient(microbatch, edge)
        counts = self.in_flight[microbatch].given.counts[edge.index]
        self.model.communicator.send(StageMessage([gradient], counts[:1]), edge, microbatch, 1)


def before_reduction(model: StagedModel) -> tuple[Action, ...]:
    """Return the actions of this rank in one step up to the reduction of gradients."""
    actions = model.pipeline.actions(dist.get_rank())
    return tuple(a for a in actions if a.kind not in UPDATE)


def forward_only(model: StagedModel) -> tuple[Action, ...]:
    """Return the forward actions of this rank in one step."""
    return tuple(a for a in before_reduction(model) if a.kind in FORWARD_HALF)


def forward_backward_steps(
    data_iterator: Iterator[Batch] | None, model: HeterogeneousModel
) -> StepGenerator[list[MicrobatchLoss]]:
    """Yield the steps of forward and backward of all micro-batches."""
    executor = StageExecutor(model, data_iterator)
    # Gradients are summed over micro-batches here, and over replicas when they are finalized.
    yield from executor.run(before_reduction(model))
    model.stage.wrapped.num_tokens += executor.num_tokens
    return _losses(executor)


def forward_steps(
    data_iterator: Iterator[Batch] | None, model: HeterogeneousModel
) -> StepGenerator[list[MicrobatchLoss]]:
    """Yield the steps of the forward of all micro-batches."""
    executor = StageExecutor(model, data_iterator)
    with torch.no_grad():
        yield from executor.run(forward_only(model))
    return _losses(executor)


def _losses(executor: StageExecutor) -> list[MicrobatchLoss]:
    tokens = {executor.model.stage.name: executor.tokens}
    return [MicrobatchLoss(executor.loss_sum, executor.num_tokens, tokens)]
