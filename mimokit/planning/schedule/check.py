"""Reject a schedule that would lose a message, mix messages up or wait indefinitely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from mimokit.planning.schedule.actions import Action, Message
from mimokit.step_kinds import RECEIVES, SENDS, StepKind

Pair = tuple[int, int]
"""Index of the stage that sends, index of the stage that receives."""


class ScheduleError(ValueError):
    """A schedule was rejected; `str()` is one sentence."""


def check_actions(actions: Sequence[Sequence[Action]], *, blocking_sends: bool = False) -> None:
    """Check the actions of all stages before anything runs.

    Every send must have one receive and every receive one send. The messages of a pair of stages
    must be received in the order in which they are sent, because NCCL ignores tags. No stage may
    wait for a stage that waits for it.

    Args:
        actions: by index of a stage: its actions in order.
        blocking_sends: a send waits until its receive is reached, as a blocking gloo send or an
            ungrouped NCCL send does. False: it starts the message and continues.

    Raises:
        ScheduleError: the first fault found, in one sentence; a cycle is listed action by action.
    """
    sent, received = _traffic(actions, SENDS), _traffic(actions, RECEIVES)
    for pair in sorted(sent.keys() | received.keys()):
        _check_pair(pair, sent.get(pair, []), received.get(pair, []))
    _check_waiting(actions, blocking_sends)


def _traffic(
    actions: Iterable[Iterable[Action]], kinds: tuple[str, ...]
) -> dict[Pair, list[Message]]:
    found: dict[Pair, list[Message]] = {}
    for own in actions:
        for action in own:
            if action.kind in kinds:
                found.setdefault(_pair(action), []).append(action.message)
    return found


def _pair(action: Action) -> Pair:
    assert action.peer is not None, "a message has two ends"
    if action.kind in SENDS:
        return action.stage, action.peer
    return action.peer, action.stage


def _check_pair(pair: Pair, sent: list[Message], received: list[Message]) -> None:
    if sent == received and len(set(sent)) == len(sent):
        return
    sender, receiver = pair
    sends, receives = Counter(sent), Counter(received)
    for message in dict.fromkeys((*sent, *received)):
        s, r = sends[message], receives[message]
        if s != 1 or r != 1:
            raise ScheduleError(
                f"Stage {sender} sends {_text(message)} to stage {receiver} {_times(s)}, but stage "
                f"{receiver} receives it {_times(r)}; it takes one send and one receive."
            )
    first, other = next((a, b) for a, b in zip(sent, received, strict=True) if a != b)
    raise ScheduleError(
        f"Stage {sender} sends {_text(first)} to stage {receiver} before {_text(other)}, but stage "
        f"{receiver} receives them the other way round; a backend that ignores tags would mix them "
        "up."
    )


def _text(message: Message) -> str:
    forward, edge, microbatch, modality, _ = message
    what = "activations" if forward else "gradients"
    return f"the {what} of '{modality}' for micro-batch {microbatch} (edge {edge})"


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _check_waiting(actions: Sequence[Sequence[Action]], blocking_sends: bool) -> None:
    """Run all stages as far as they can, until none advances; reject if some have not ended."""
    run = _StageProgress(actions, blocking_sends)
    awake = list(range(len(actions)))
    while awake:
        stage = awake.pop()
        awake += run.advance(stage)
    stuck = [stage for stage, own in enumerate(actions) if run.at[stage] < len(own)]
    if stuck:
        raise ScheduleError(_cycle_text(run.cycle(stuck[0])))


class _StageProgress:
    """The progress of every stage.

    Attributes:
        at: by index of a stage: its next action.
    """

    def __init__(self, actions: Sequence[Sequence[Action]], blocking_sends: bool) -> None:
        self.actions = actions
        self.blocking = blocking_sends
        self.at = [0] * len(actions)
        self.under_way: set[Message] = set()
        self.computed: set[tuple[int, int | None, int]] = set()

    def advance(self, stage: int) -> Iterator[int]:
        """Run a stage until it waits; yield the stages that may continue now."""
        own = self.actions[stage]
        while self.at[stage] < len(own):
            action = own[self.at[stage]]
            kind = action.kind
            if kind in SENDS:
                if self.blocking and not self._meets(action):
                    return
                self.under_way.add(action.message)
                assert action.peer is not None, "a send has a peer"
                yield action.peer
            elif kind in RECEIVES:
                if action.message not in self.under_way:
                    if self.blocking:
                        assert action.peer is not None, "a receive has a peer"
                        yield from self._waiting_sender(action)
                    return
            elif kind == StepKind.FORWARD:
                self.computed.add((stage, action.microbatch, action.chunk))
            elif kind == StepKind.BACKWARD and not self._has_computed(action):
                return
            self.at[stage] += 1

    def _has_computed(self, backward: Action) -> bool:
        return (backward.stage, backward.microbatch, backward.chunk) in self.computed

    def _waiting_sender(self, receive: Action) -> Iterator[int]:
        """Yield the sender of a receive that has been reached, if it waits at that send."""
        assert receive.peer is not None, "a receive has a peer"
        head = self._head(receive.peer)
        if head is not None and head.kind in SENDS and head.message == receive.message:
            yield receive.peer

    def _meets(self, send: Action) -> bool:
        """Return whether the peer of a send waits at its receive."""
        assert send.peer is not None, "a send has a peer"
        head = self._head(send.peer)
        return head is not None and head.kind in RECEIVES and head.message == send.message

    def _head(self, stage: int) -> Action | None:
        own = self.actions[stage]
        return own[self.at[stage]] if self.at[stage] < len(own) else None

    def cycle(self, stage: int) -> list[Action]:
        """Return the actions that wait for each other, from a stage that has not ended."""
        path: list[Action] = []
        while True:
            head = self._head(stage)
            assert head is not None, "a stage that others wait for has not ended"
            if head in path:
                return path[path.index(head) :]
            path.append(head)
            if head.peer is None:
                return [head]  # a backward before its own forward
            stage = head.peer


def _cycle_text(cycle: list[Action]) -> str:
    if len(cycle) == 1:
        action = cycle[0]
        return (
            f"Wait cycle: stage {action.stage} waits in {action} for its own forward of "
            f"{action.microbatch}, which comes after it."
        )
    links = [f"stage {action.stage} waits in {action}" for action in cycle]
    return f"Wait cycle: {', '.join(links)}, and so the first again."
