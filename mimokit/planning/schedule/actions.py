"""The actions of a stage, and the orders in which a stage computes.

An order is a function of (position of the stage, stages on the longest path, micro-batches) that
returns every forward and every backward of the stage once. Orders that cut a stage into chunks
(interleaved) or a backward into two (zero-bubble) fit the same type with more kinds of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from mimokit.step_kinds import SENDS, StepKind

ComputeKind = Literal["forward", "backward"]
Step = tuple[ComputeKind, int]
"""Forward or backward, and the micro-batch (0-based)."""

Order = Callable[[int, int, int], Sequence[Step]]

Message = tuple[bool, int, int, str, int]
"""Forward or not, edge, micro-batch, modality, chunk."""


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a stage.

    A send starts its message and never waits. A receive ends when its message has arrived: the
    contents of a message are known only from its header.

    Attributes:
        kind: load, forward, backward, a send or a receive of activations ("-forward") or of
            gradients ("-backward"), grad-sync or optimizer.
        stage: index of the stage that executes it.
        microbatch: 0-based; None for grad-sync and optimizer.
        edge: index of the edge that a message crosses, else None.
        peer: index of the stage at the other end of that edge, else None.
        modality: the module whose output (or its gradient) crosses, else None.
        chunk: part of the stage's module, for orders that cut it further; 0 in the orders here.
    """

    kind: StepKind
    stage: int
    microbatch: int | None = None
    edge: int | None = None
    peer: int | None = None
    modality: str | None = None
    chunk: int = 0

    @property
    def message(self) -> Message:
        """What a send and its receive have in common.

        Raises:
            ValueError: the action is neither.
        """
        if self.edge is None or self.microbatch is None or self.modality is None:
            raise ValueError(f"{self} sends and receives nothing")
        forward = self.kind in (StepKind.SEND_FORWARD, StepKind.RECEIVE_FORWARD)
        return forward, self.edge, self.microbatch, self.modality, self.chunk

    def __str__(self) -> str:
        text = self.kind if self.microbatch is None else f"{self.kind} of {self.microbatch}"
        if self.peer is None:
            return text
        towards = "to" if self.kind in SENDS else "from"
        return f"{text} ('{self.modality}') {towards} stage {self.peer}"


def num_warmup_microbatches(position: int, total_stages: int, num_microbatches: int) -> int:
    """Return the forwards of a stage before it alternates: one per stage that follows.

    `total_stages - position - 1`, at most all micro-batches (Narayanan et al. 2021,
    arXiv 2104.04473, section 2.2; over a graph the position is counted on the longest path, as
    megatron-core does).
    """
    return min(total_stages - position - 1, num_microbatches)


def gpipe(position: int, total_stages: int, num_microbatches: int) -> Sequence[Step]:
    """Return all forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965)."""
    microbatches = range(num_microbatches)
    return [("forward", m) for m in microbatches] + [("backward", m) for m in microbatches]


def one_forward_one_backward(
    position: int, total_stages: int, num_microbatches: int
) -> Sequence[Step]:
    """Return 1F1B: warm-up forwards, then forward and backward in turn, then the backwards left.

    At most warm-up + 1 micro-batches are in flight at a time.
    """
    warmup = num_warmup_microbatches(position, total_stages, num_microbatches)
    steps: list[Step] = [("forward", m) for m in range(warmup)]
    for m in range(num_microbatches - warmup):
        steps.append(("forward", warmup + m))
        steps.append(("backward", m))
    steps += [("backward", m) for m in range(num_microbatches - warmup, num_microbatches)]
    return steps
