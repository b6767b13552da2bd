"""What nodes agree on: equal models before the first step, and the step after which they stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mimokit.engine.collectives import gather_json
from mimokit.extras.strategies.fits.job import FitError
from mimokit.extras.strategies.nodes import communicate

LOOK_SECONDS = 0.25
"""Time between two looks at whether the user has asked the fit to stop."""
LONGEST = 1000
"""Steps between two looks, at most."""


def gathered_values(value: Any, nodes: int) -> list[Any]:
    """Return the values of all nodes, each as `json.dumps` takes it. Collective."""
    return [value] if nodes < 2 else gather_json(value)


@dataclass(frozen=True)
class Facts:
    """What nodes compare before the first step.

    Attributes:
        batches: of an epoch; None: not known.
        minibatch_size: that of node 0 counts.
    """

    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    batches: int | None
    minibatch_size: int

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Facts:
        """Return what another node has gathered with `asdict`."""
        tensors = tuple((name, tuple(shape)) for name, shape in content["tensors"])
        return cls(tensors, content["batches"], content["minibatch_size"])


def gathered_facts(mine: Facts, nodes: int) -> list[Facts]:
    """Return the facts of all nodes. Collective."""
    return [Facts.from_json(facts) for facts in gathered_values(asdict(mine), nodes)]


def shapes_of_model(model: nn.Module) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return name and shape of each parameter and buffer."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return tuple((name, tuple(tensor.shape)) for name, tensor in named)


def check_model_of_node(facts: Sequence[Facts], rank: int) -> None:
    """Raise `FitError` if this node has not the model of node 0; it names the first difference."""
    first, local = dict(facts[0].tensors), dict(facts[rank].tensors)
    for name in [*first, *local]:
        if first.get(name) != local.get(name):
            here, there = (
                f"has shape {list(shape)}" if shape is not None else "does not exist"
                for shape in (local.get(name), first.get(name))
            )
            raise FitError(
                f"node {rank}: tensor {name!r} {here}, but on node 0 it {there}; all nodes need "
                "the same model"
            )


def steps_of(
    facts: Sequence[Facts], num_epochs: int, max_steps: int | None
) -> tuple[int, tuple[str, ...]]:
    """Return the steps of a fit, and sentences for the user; `FitError` if they are not known."""
    if max_steps is not None:
        return max_steps, ()
    batches = []
    for node, fact in enumerate(facts):
        if fact.batches is None:
            raise FitError(f"node {node}: its data has no length; give max_steps")
        batches.append(fact.batches)
    least, most = min(batches), max(batches)
    steps = num_epochs * least
    if least == most:
        return steps, ()
    return steps, (
        f"node {batches.index(least)} has {least} batches, but node {batches.index(most)} has "
        f"{most}: all nodes stop after step {steps}",
    )


def start_alike(model: nn.Module) -> None:
    """Give all nodes the weights and buffers of node 0, in one message per type. Collective."""
    tensors: dict[torch.dtype, list[Tensor]] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        tensors.setdefault(tensor.dtype, []).append(tensor.detach())
    with communicate.ledger.counting("start"):
        for group in tensors.values():
            flat = torch.cat([tensor.reshape(-1) for tensor in group])
            communicate.broadcast(flat)
            parts = torch.split(flat, [tensor.numel() for tensor in group])
            for tensor, part in zip(group, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))


class StopAgreement:
    """Whether all nodes stop after a step, without holding any up.

    Every few steps nodes begin to exchange whether they have been asked to stop, and read the
    answer the next time. So all stop after the same step, within about half a second.
    """

    def __init__(self, should_stop: Callable[[], bool], nodes: int, first_step: int) -> None:
        self._should_stop, self._nodes = should_stop, nodes
        self._next = first_step + 1
        self._since = (first_step, time.monotonic())
        self._answer: tuple[Tensor, Any] | None = None

    def after(self, step: int) -> bool:
        """Return whether the fit ends after a step. Collective."""
        if self._nodes < 2:
            return self._should_stop()
        if step < self._next:
            return False
        stop = self._read(step)
        if not stop:
            question = torch.tensor([int(self._should_stop()), -self._interval(step)])
            self._answer = question, dist.all_reduce(question, dist.ReduceOp.MAX, async_op=True)
        return stop

    def close(self) -> None:
        """Wait for the answer that is under way; every node has asked. Collective."""
        self._read(self._next)

    def _read(self, step: int) -> bool:
        if self._answer is None:
            self._next = step + 1
            return False
        values, work = self._answer
        begun = time.monotonic()
        work.wait()
        communicate.ledger.seconds += time.monotonic() - begun
        self._answer = None
        self._next = step - int(values[1])
        return bool(values[0])

    def _interval(self, step: int) -> int:
        past, now = self._since
        self._since = (step, time.monotonic())
        seconds = (time.monotonic() - now) / max(1, step - past)
        return max(1, min(LONGEST, int(LOOK_SECONDS / max(seconds, 1e-6))))
