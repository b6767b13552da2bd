"""Executes the schedule plan on one rank, action by action."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from mimokit.engine.data.batch import Batch, check_tokens, to_device
from mimokit.engine.device import rank_device
from mimokit.engine.loss import masked_loss_sum, vocab_parallel_cross_entropy
from mimokit.engine.pipeline.model import HeterogeneousModel
from mimokit.engine.pipeline.stages import StageInput, StageOutput
from mimokit.engine.pipeline.tags import Tag
from mimokit.engine.steps import Schedule, Step
from mimokit.plan.schedule import Action, StageEdge

FORWARD_KINDS = ("load", "receive-forward", "forward", "send-forward")
LossOf = Callable[[torch.Tensor, Batch], None]


@dataclass
class Microbatch:
    """What a rank keeps of a micro-batch between its actions."""

    given: StageInput
    output: StageOutput | None = None
    loss: torch.Tensor | None = None
    num_tokens: int = 0
    gradients: list[torch.Tensor] = field(default_factory=list)


class StageExecutor:
    """Runs actions of one stage; every micro-batch is forgotten after its last action.

    Args:
        model: what this rank holds.
        data_iterator: gives the batches it reads, None on a rank that reads nothing.
    """

    def __init__(self, model: HeterogeneousModel, data_iterator: Iterator[Batch] | None) -> None:
        self.model = model
        self.loss_sum = 0.0
        self.num_tokens = 0
        self.tokens = 0
        self._iterator = data_iterator
        self._held: dict[int, Microbatch] = {}
        self._edges = {edge.index: edge for edge in model.pipeline.graph.edges}
        self._do = {
            "load": self._load,
            "receive-forward": self._receive_forward,
            "forward": self._forward,
            "send-forward": self._send_forward,
            "receive-backward": self._receive_backward,
            "backward": self._backward,
            "send-backward": self._send_backward,
        }

    def run(self, actions: Sequence[Action], look: LossOf | None = None) -> Schedule[None]:
        """Yield a step before each action and do it; what was sent has arrived at the end.

        Args:
            actions: those before gradients are reduced, in the plan's order.
            look: sees logits and batch of every micro-batch at the end of the language model,
                in place of a loss.
        """
        self._look = look
        stage = self.model.stage.name
        for action in actions:
            yield Step(action.kind, stage, action.microbatch)
            self._do[action.kind](action)
        yield Step("wait", stage)
        self.model.mailbox.wait()
        self._held.clear()

    def _microbatch(self, action: Action) -> Microbatch:
        assert action.microbatch is not None
        empty = Microbatch(StageInput(None, {}, {}))
        return self._held.setdefault(action.microbatch, empty)

    def _edge(self, action: Action) -> StageEdge:
        assert action.edge is not None
        return self._edges[action.edge]

    def _load(self, action: Action) -> None:
        assert self._iterator is not None
        batch = next(self._iterator)
        check_tokens(batch, self.model.special_token_ids, self.model.tokens_per_item)
        self._microbatch(action).given.batch = to_device(batch, rank_device())

    def _receive_forward(self, action: Action) -> None:
        edge, given = self._edge(action), self._microbatch(action).given
        hidden, counts = self._receive(edge, action, direction=0)
        given.hidden[edge.index] = hidden.requires_grad_(torch.is_grad_enabled())
        given.counts[edge.index] = counts

    def _forward(self, action: Action) -> None:
        held, stage = self._microbatch(action), self.model.stage
        held.output = stage.forward(held.given)
        self.tokens += self._count_tokens(held)
        if stage.name != self.model.language_module_name or not stage.last:
            return
        assert held.given.batch is not None
        if self._look is not None:
            self._look(held.output.tensor, held.given.batch)
            return
        group = self.model.pg_collections[stage.name].tp
        losses = vocab_parallel_cross_entropy(held.output.tensor, held.given.batch["labels"], group)
        held.loss, held.num_tokens = masked_loss_sum(losses, held.given.batch["loss_mask"])
        self.loss_sum += float(held.loss.detach())
        self.num_tokens += held.num_tokens

    def _count_tokens(self, held: Microbatch) -> int:
        """Count tokens at the end of a module, where each is seen once per replica."""
        assert held.output is not None
        if not self.model.stage.last:
            return 0
        if self.model.stage.name == self.model.language_module_name:
            assert held.given.batch is not None
            return int(held.given.batch["input_ids"].numel())
        return len(held.output.tensor)

    def _send_forward(self, action: Action) -> None:
        output = self._microbatch(action).output
        assert output is not None
        self._send(output.tensor.detach(), output.counts, self._edge(action), action, direction=0)

    def _receive_backward(self, action: Action) -> None:
        gradient, _ = self._receive(self._edge(action), action, direction=1)
        self._microbatch(action).gradients.append(gradient)

    def _backward(self, action: Action) -> None:
        held = self._microbatch(action)
        assert held.output is not None
        if held.loss is not None:
            held.loss.backward()  # type: ignore[no-untyped-call]
        else:
            torch.autograd.backward(held.output.tensor, sum(held.gradients[1:], held.gradients[0]))
        # Only the gradients of what came in are needed from here on.
        held.output, held.loss = None, None

    def _send_backward(self, action: Action) -> None:
        edge, given = self._edge(action), self._microbatch(action).given
        gradient = given.hidden[edge.index].grad
        assert gradient is not None
        self._send(gradient, given.counts[edge.index], edge, action, direction=1)

    def _send(
        self,
        tensor: torch.Tensor,
        counts: list[int],
        edge: StageEdge,
        action: Action,
        direction: int,
    ) -> None:
        assert action.microbatch is not None
        route = self.model.routes.get((edge.index, direction))
        if route is not None:
            route.send(tensor, counts, action.microbatch)
            return
        numbers = torch.tensor(counts, dtype=torch.int64, device=tensor.device)
        tag = Tag(direction, edge.index, action.microbatch)  # type: ignore[arg-type]
        self.model.mailbox.send([tensor, numbers], self.model.peer(edge), tag)

    def _receive(
        self, edge: StageEdge, action: Action, direction: int
    ) -> tuple[torch.Tensor, list[int]]:
        assert action.microbatch is not None
        route = self.model.routes.get((edge.index, direction))
        if route is not None:
            return route.receive(action.microbatch)
        tag = Tag(direction, edge.index, action.microbatch)  # type: ignore[arg-type]
        tensor, numbers = self.model.mailbox.receive(self.model.peer(edge), tag)
        return tensor, numbers.tolist()


def before_reduction(model: HeterogeneousModel) -> tuple[Action, ...]:
    """Return this rank's actions of one step up to the reduction of gradients."""
    actions = model.pipeline.actions(dist.get_rank())
    return tuple(a for a in actions if a.kind not in ("grad-sync", "optimizer"))


def forward_only(model: HeterogeneousModel) -> tuple[Action, ...]:
    """Return this rank's actions without the backward half."""
    return tuple(a for a in before_reduction(model) if a.kind in FORWARD_KINDS)
