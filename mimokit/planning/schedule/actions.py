"""What a stage does, one action at a time."""

from __future__ import annotations

from dataclasses import dataclass

from mimokit.step_kinds import SENDS, StepKind


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a stage does.

    A send only hands its message over and never waits. A receive asks for its message and ends when
    it is there: what a message holds is only known from its header.

    Attributes:
        kind: load, forward, backward, a send or a receive of activations ("-forward") or of
            gradients ("-backward"), grad-sync or optimizer.
        stage: index of the stage that does it.
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

    def __str__(self) -> str:
        text = self.kind if self.microbatch is None else f"{self.kind} of {self.microbatch}"
        if self.peer is None:
            return text
        towards = "to" if self.kind in SENDS else "from"
        return f"{text} ('{self.modality}') {towards} stage {self.peer}"
