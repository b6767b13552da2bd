"""What a stage does, one action at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ActionKind = Literal[
    "load",
    "receive-forward",
    "forward",
    "send-forward",
    "receive-backward",
    "backward",
    "send-backward",
    "grad-sync",
    "optimizer",
]

COMPUTE_KINDS = ("forward", "backward")
SEND_KINDS = ("send-forward", "send-backward")
RECEIVE_KINDS = ("receive-forward", "receive-backward")


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a stage does.

    A send only hands its message over and never waits. A receive ends when its message is there.
    `receive_posts` says how early it can be asked for.

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

    kind: ActionKind
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
        towards = "to" if self.kind in SEND_KINDS else "from"
        return f"{text} ('{self.modality}') {towards} stage {self.peer}"


def receive_posts(actions: Sequence[Action], lookahead: int = 1) -> tuple[tuple[int, ...], ...]:
    """Return, for each action, which receives to post just before it.

    Posted `lookahead` computations early, a transfer runs while the stage still computes. The
    order of posts is that of the receives, so the order per pair of stages stays as it was
    checked. With 0 every receive is posted where it stands.

    Args:
        actions: of one stage, in their order.
        lookahead: computations to post ahead.

    Returns:
        By index of an action: indices of receives, ascending. Every receive is posted once.
    """
    posts: list[list[int]] = [[] for _ in actions]
    computed = 0
    begins: list[int] = []  # where each computation stands
    for index, action in enumerate(actions):
        if action.kind in RECEIVE_KINDS:
            early = lookahead > 0 and computed >= lookahead
            posts[begins[computed - lookahead] if early else 0 if lookahead else index].append(
                index
            )
        elif action.kind in COMPUTE_KINDS:
            begins.append(index)
            computed += 1
    return tuple(map(tuple, posts))
