"""The steps and actions of ranks, and the type of the orders in which they come."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mimokit.planning.schedule.graph import StageGraph
from mimokit.step_kinds import SENDS, StepKind

Step = tuple[StepKind, int | None, int]
"""Kind, stage (None: all stages of the rank), micro-batch (0-based)."""

Order = Callable[[StageGraph, int, int], Sequence[Step]]
"""(Graph, index into `StageGraph.workers`, micro-batches) -> its steps, in order."""

Message = tuple[bool, int, int, str]
"""Forward or not, edge, micro-batch, modality."""


class ScheduleError(ValueError):
    """A schedule was rejected; `str()` is one sentence."""


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a rank.

    A send starts its message and never waits. A receive ends when its message has arrived: the
    contents of a message are known only from its header. A gather and a scatter are the bridge
    between two stages of the same ranks.

    Attributes:
        kind: load, slice, forward, loss, backward, a send or a receive of activations ("-forward")
            or of gradients ("-backward"), gather, scatter, grad-sync or optimizer.
        stage: index of the stage that it belongs to; None: all stages of the rank.
        microbatch: 0-based; None for grad-sync and optimizer.
        edge: index of the edge that a message or a bridge crosses, else None.
        peer: index of the stage at the other end of that edge, else None.
        modality: the module whose output (or its gradient) crosses, else None.
    """

    kind: StepKind
    stage: int | None
    microbatch: int | None = None
    edge: int | None = None
    peer: int | None = None
    modality: str | None = None

    @property
    def message(self) -> Message:
        """What a send and its receive have in common; raises `ValueError` of another action."""
        if self.edge is None or self.microbatch is None or self.modality is None:
            raise ValueError(f"{self} sends and receives nothing")
        forward = self.kind in (StepKind.SEND_FORWARD, StepKind.RECEIVE_FORWARD)
        return forward, self.edge, self.microbatch, self.modality

    def __str__(self) -> str:
        text = self.kind if self.microbatch is None else f"{self.kind} of {self.microbatch}"
        if self.peer is None:
            return text
        towards = "to" if self.kind in (*SENDS, StepKind.GATHER) else "from"
        return f"{text} ('{self.modality}') {towards} stage {self.peer}"
