"""Executes the planned actions of one rank, in every mode."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

from mimokit.engine.bridges.routes import Direction
from mimokit.engine.data.batch import Batch, check_tokens, to_device
from mimokit.engine.data.check import check_keys
from mimokit.engine.device import rank_device
from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.engine.pipeline.communicator import MultiModulePipelineCommunicator
from mimokit.engine.pipeline.loaded_batch import LoadedBatch, shares_items
from mimokit.engine.pipeline.microbatches import Microbatch, PipelineStageMultimodality
from mimokit.engine.pipeline.model import RankModel
from mimokit.engine.ragged import Ragged
from mimokit.engine.steps import Step, StepGenerator
from mimokit.planning.schedule import Action, StageEdge
from mimokit.step_kinds import BRIDGES, COMPUTATIONS, StepKind

LogitsObserver = Callable[[torch.Tensor, Batch], None]


@dataclass
class MicrobatchLoss:
    """The result of one micro-batch on one rank.

    Attributes:
        loss_sum: sum over unmasked tokens.
        num_tokens: number of unmasked tokens.
        module_tokens: module -> number of tokens that this rank computed for it.
        further_loss_sum: sum over unmasked tokens further on, where some are predicted, or over the
            rows of an image decoder.
        further_tokens: number of these.
    """

    loss_sum: float = 0.0
    num_tokens: float = 0.0
    module_tokens: dict[str, int] = field(default_factory=dict)
    further_loss_sum: float = 0.0
    further_tokens: float = 0.0


@dataclass
class Boundary:
    """The tensors at both ends of a bridge on shared ranks, where autograd is cut."""

    encoder_output: torch.Tensor
    bridge_input: torch.Tensor
    bridge_output: torch.Tensor
    language_input: torch.Tensor


class StageExecutor:
    """Runs the actions of this rank and keeps a micro-batch until its last action.

    Args:
        data_iterator: yields the batches of this rank; None on a rank that reads no data.
        step: optimizer steps before this one.
    """

    def __init__(
        self, model: RankModel, data_iterator: Iterator[Batch] | None, step: int = 0
    ) -> None:
        self.model = model
        self.losses = [MicrobatchLoss() for _ in range(model.program.schedule.num_microbatches)]
        self._iterator = data_iterator
        self._batches_read = 0
        self._stages = {
            index: PipelineStageMultimodality(model.program, index, stage, step)
            for index, stage in model.stages.items()
        }
        self._edges = model.program.graph.edges
        self._loaded: dict[int, LoadedBatch] = {}
        self._boundaries: dict[int, dict[str, Boundary]] = {}
        self._idle: dict[int | None, set[tuple[StepKind, int | None]]] = {}
        self._do = {
            StepKind.LOAD: self._load,
            StepKind.SLICE: self._slice,
            StepKind.RECEIVE_FORWARD: self._receive_forward,
            StepKind.FORWARD: self._forward,
            StepKind.GATHER: self._gather,
            StepKind.SEND_FORWARD: self._send_forward,
            StepKind.LOSS: self._loss,
            StepKind.RECEIVE_BACKWARD: self._receive_backward,
            StepKind.SCATTER: self._scatter,
            StepKind.BACKWARD: self._backward,
            StepKind.WEIGHT_GRADIENT: self._weight_gradient,
            StepKind.SEND_BACKWARD: self._send_backward,
        }

    @cached_property
    def _modules(self) -> Mapping[str, ModuleDataParallel]:
        return self.model.modules()

    def state(self, stage: int, microbatch: int) -> Microbatch | None:
        """Return the state of a micro-batch in flight on a stage."""
        return self._stages[stage].in_flight.get(microbatch)

    def run(
        self, actions: Sequence[Action], observe_logits: LogitsObserver | None = None
    ) -> StepGenerator[None]:
        """Yield a step before each action, then run it; all sent messages have arrived at the end.

        A module, or a chunk of it, may reduce its gradients in the last backward of its stages, and
        in none before.

        Args:
            actions: up to the reduction of gradients, in the order of the plan.
            observe_logits: called with logits and batch of every micro-batch at the end of the
                language model, where no loss is computed then.

        Raises:
            RuntimeError: an action failed; rank, stage and action are noted on the error.
        """
        self._observe_logits = observe_logits
        self._own_losses = {action.stage for action in actions if action.kind == StepKind.LOSS}
        ends = {action.microbatch: number for number, action in enumerate(actions)}
        last: dict[tuple[ModuleDataParallel, torch.nn.Module | None], int] = {}
        for number, action in enumerate(actions):
            if action.kind in COMPUTATIONS[1:] and action.stage is not None:
                last |= dict.fromkeys(self.model.stages[action.stage].parts, number)
        with contextlib.ExitStack() as whole:
            accumulating: dict[int | None, contextlib.ExitStack] = {}
            of_stages = [part for stage in self.model.stages.values() for part in stage.parts]
            for module, chunk in dict.fromkeys(of_stages):
                ending = last.get((module, chunk))
                if ending not in accumulating:
                    accumulating[ending] = whole.enter_context(contextlib.ExitStack())
                accumulating[ending].enter_context(module.no_sync(chunk))
            for number, action in enumerate(actions):
                if number in accumulating:
                    accumulating[number].close()
                if (action.kind, action.stage) not in self._idle.get(action.microbatch, ()):
                    function = self._do[action.kind]
                    yield Step(action.kind, self._module(action), action.microbatch, function)
                    try:
                        function(action)
                    except Exception as error:
                        error.add_note(self._where(action))
                        raise
                if number == ends[action.microbatch]:
                    self._forget(action.microbatch)
        if self.model.communicator is not None and self.model.stages:
            yield Step(StepKind.WAIT, self.model.last_stage.name)
            self.model.communicator.wait()

    def _module(self, action: Action) -> str | None:
        return None if action.stage is None else self.model.stages[action.stage].name

    def _where(self, action: Action) -> str:
        rank, stages = dist.get_rank(), self.model.program.graph.stages
        place = "" if action.stage is None else f" {stages[action.stage]},"
        return f"On rank {rank},{place} in the action: {action}."

    def _forget(self, microbatch: int | None) -> None:
        assert microbatch is not None
        for stage in self._stages.values():
            stage.in_flight.pop(microbatch, None)
        for kept in (self._loaded, self._boundaries, self._idle):
            kept.pop(microbatch, None)

    def tensors(self) -> dict[str, Any]:
        """Return the micro-batches in flight, by the names that a debugger shows."""
        if self.model.communicator is not None or len(self._loaded) != 1:
            states: dict[int, Any] = {}
            for stage in self._stages.values():
                for number, own in stage.in_flight.items():
                    if len(self._stages) == 1:
                        states[number] = own
                    else:
                        states.setdefault(number, {})[stage.stage.name] = own
            return {"microbatch": states}
        ((microbatch, loaded),) = self._loaded.items()
        *_, language = self._stages.values()
        state = language.in_flight.get(microbatch)
        return {
            "loaded": loaded.batch,
            "boundaries": self._boundaries.get(microbatch, {}),
            "text": None if state is None else state.given.batch,
            "logits": None if state is None or state.output is None else state.output.logits,
            "loss": None if state is None else state.loss,
        }

    def _at(self, action: Action) -> tuple[PipelineStageMultimodality, int]:
        assert action.stage is not None
        assert action.microbatch is not None
        return self._stages[action.stage], action.microbatch

    def _place(self, action: Action) -> tuple[StageEdge, int]:
        assert action.edge is not None
        assert action.microbatch is not None
        return self._edges[action.edge], action.microbatch

    def read(self, stop: int) -> Batch | None:
        """Read batches up to a micro-batch and return its batch; the others have no work here."""
        batch = None
        while self._iterator is not None and self._batches_read < stop:
            batch = next(self._iterator)
            self._batches_read += 1
        return batch

    def _load(self, action: Action) -> None:
        assert action.microbatch is not None
        batch = self.read(action.microbatch + 1)
        assert batch is not None
        if self.model.forward_step is None:
            check_keys(batch)
        check_tokens(batch, self.model.special_token_ids, self.model.tokens_per_item)
        batch = to_device(batch, rank_device())
        if action.stage is None:
            loaded = LoadedBatch(self.model.plan, self._modules, batch)
            self._loaded[action.microbatch] = loaded
        else:
            self._stages[action.stage].take_batch(action.microbatch, batch)

    def _slice(self, action: Action) -> None:
        assert action.microbatch is not None
        loaded = self._loaded[action.microbatch]
        for index, stage in self._stages.items():
            batch = loaded.of_module(stage.stage.name)
            if batch is not None:
                stage.take_batch(action.microbatch, batch)
            if stage.stage.name in self.model.bridges:
                self._note_items(index, action.microbatch, loaded)

    def _note_items(self, stage: int, microbatch: int, loaded: LoadedBatch) -> None:
        """Note the steps of an encoder that have nothing to do.

        Without items in the whole gather group these are all of them, on all its ranks; without
        items on this rank its forward. An encoder that shares its items with others always runs.
        """
        name = self.model.stages[stage].name
        if shares_items(self._modules[name]):
            return
        rows = loaded.rows_of_group(name, self.model.tokens_per_item)
        idle: tuple[StepKind, ...] = ()
        if not sum(rows):
            idle = (StepKind.FORWARD, *BRIDGES, StepKind.BACKWARD)
            for edge in self.model.program.graph.outgoing[stage]:
                self._stages[edge.destination].go_without(microbatch, edge)
        elif not sum(loaded.rows_of(name, name, rows)):
            idle = (StepKind.FORWARD,)
        self._idle.setdefault(microbatch, set()).update((kind, stage) for kind in idle)

    def _receive_forward(self, action: Action) -> None:
        edge, microbatch = self._place(action)
        message = self._communicator.receive(edge, microbatch, 0)
        self._at(action)[0].take(microbatch, edge, message)

    def _forward(self, action: Action) -> None:
        stage, microbatch = self._at(action)
        state = stage.forward_one_chunk(microbatch)
        assert state.output is not None
        batch = state.given.batch
        counted = self.losses[microbatch].module_tokens
        for name, tokens in stage.stage.module_tokens(state.output, batch).items():
            counted[name] = counted.get(name, 0) + tokens
        if self._observe_logits is not None:
            if stage.stage.ends and state.output.logits is not None and batch is not None:
                self._observe_logits(stage.stage.whole_logits(state.output, batch), batch)
        elif action.stage not in self._own_losses:
            self._loss(action)

    def _gather(self, action: Action) -> None:
        edge, microbatch = self._place(action)
        source, receiver = self._stages[edge.source], self._stages.get(edge.destination)
        output = source.in_flight[microbatch].output
        if output is None:  # no items here: 0 rows
            output = source.forward_one_chunk(microbatch).output
            assert output is not None
        given = output.tensor.detach()
        crossed = self._cross(output.carrying(given), edge, microbatch, 0)
        if crossed is None or receiver is None:
            return
        if edge.modality in self.model.bridges:
            arrived, crossed = crossed.tensor, crossed.carrying(crossed.tensor.detach())
            self._boundaries.setdefault(microbatch, {})[edge.modality] = Boundary(
                output.tensor, given, arrived, crossed.tensor
            )
        # Also where only other ranks of the gather group encoded items: the ranks of a tensor
        # parallel language model all reduce in the backward, or none does.
        receiver.take(microbatch, edge, crossed)
        for other in self.model.program.graph.incoming[edge.destination]:
            if other.modality == edge.modality and other != edge:
                receiver.go_without(microbatch, other)

    def _cross(
        self, message: Ragged | None, edge: StageEdge, microbatch: int, direction: Direction
    ) -> Ragged | None:
        """Carry what this rank gives over a bridge, and return what it takes; None: nothing."""
        if edge.modality in self.model.bridges:
            assert message is not None
            rows = self._loaded[microbatch].rows_of_group(edge.modality, self.model.tokens_per_item)
            return self.model.bridges[edge.modality].cross(message, rows, direction)
        if message is not None:
            self._communicator.send(message, edge, microbatch, direction)
        if (edge.source if direction else edge.destination) not in self._stages:
            return None
        return self._communicator.receive(edge, microbatch, direction)

    def _send_forward(self, action: Action) -> None:
        edge, microbatch = self._place(action)
        stage = self._stages[edge.source]
        output = stage.in_flight[microbatch].output
        assert output is not None
        rows = stage.stage.part_for(edge.index, output.tensor.detach())
        self._communicator.send(output.carrying(rows), edge, microbatch, 0)

    def _loss(self, action: Action) -> None:
        stage, microbatch = self._at(action)
        state = stage.in_flight[microbatch]
        assert state.output is not None
        loss = stage.stage.loss(state.output, state.given.batch)
        if loss is not None:
            counted = self.losses[microbatch]
            state.loss, tokens = loss
            counted.loss_sum += float(state.loss.detach())
            counted.num_tokens += tokens
        further = stage.stage.further_loss(state.output, state.given.batch)
        if further is not None:
            counted = self.losses[microbatch]
            own = 0.0 if state.loss is None else state.loss
            state.loss = own + further.weighted
            counted.further_loss_sum += further.loss_sum
            counted.further_tokens += further.num_tokens

    def _receive_backward(self, action: Action) -> None:
        edge, microbatch = self._place(action)
        message, stage = self._communicator.receive(edge, microbatch, 1), self._at(action)[0]
        stage.take_gradient(microbatch, stage.stage.whole_of(edge.index, message.tensor))

    def _scatter(self, action: Action) -> None:
        edge, microbatch = self._place(action)
        given = self._gradient(edge, microbatch) if edge.destination in self._stages else None
        crossed = self._cross(given, edge, microbatch, 1)
        assert crossed is not None
        boundary = self._boundaries.get(microbatch, {}).get(edge.modality)
        if boundary is not None:
            boundary.bridge_input.grad = crossed.tensor
        self._stages[edge.source].take_gradient(microbatch, crossed.tensor)

    def _backward(self, action: Action) -> None:
        stage, microbatch = self._at(action)
        stage.backward_one_chunk(microbatch)

    def _weight_gradient(self, action: Action) -> None:
        stage, microbatch = self._at(action)
        stage.add_weight_gradients(microbatch)

    def _send_backward(self, action: Action) -> None:
        edge, microbatch = self._place(action)
        self._communicator.send(self._gradient(edge, microbatch), edge, microbatch, 1)

    def _gradient(self, edge: StageEdge, microbatch: int) -> Ragged:
        """Return the gradient of what has come over an edge, as it is sent back."""
        stage = self._stages[edge.destination]
        gradient = stage.gradient(microbatch, edge)
        received = stage.in_flight[microbatch].given.received[edge.index]
        if self.model.program.graph.stages[edge.source].module == stage.stage.name:
            return Ragged(gradient, items=received.items)
        return Ragged(gradient, received.samples)

    @property
    def _communicator(self) -> MultiModulePipelineCommunicator:
        assert self.model.communicator is not None
        return self.model.communicator
