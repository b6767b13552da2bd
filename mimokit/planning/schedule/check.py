"""Make a schedule; reject one that would lose a message, mix messages up or wait indefinitely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from mimokit.planning.schedule.actions import Action, Message, Order, ScheduleError
from mimokit.planning.schedule.graph import StageGraph
from mimokit.planning.schedule.orders import one_forward_one_backward
from mimokit.planning.schedule.schedule import Schedule
from mimokit.planning.schedule.tasks import TaskGraph, task_graph
from mimokit.step_kinds import RECEIVES, SENDS, StepKind

Pair = tuple[int, int]
"""Index of the stage that sends, index of the stage that receives."""


def plan_schedule(
    graph: StageGraph,
    num_microbatches: int,
    order: Order = one_forward_one_backward,
    *,
    frozen: Collection[str] = (),
    absent: Collection[tuple[str, int]] = (),
    loading: Collection[int] | None = None,
) -> Schedule:
    """Return a checked schedule: every message arrives and no stage waits indefinitely.

    Args:
        order: one of `mimokit.planning.schedule.orders`, or your own function.
        absent: (module, micro-batch) pairs for which a module has no input.
        loading: indices of the stages that read data; None: those that no stage feeds (they read
            inputs) or that feed none (labels).

    Raises:
        ScheduleError: the order leaves work out or repeats it, or the check fails.
        ValueError: no micro-batch, or an unknown module, micro-batch or stage.
    """
    modules = {name for name, _ in graph.topology}
    if num_microbatches < 1:
        raise ValueError(f"num_microbatches is {num_microbatches}; it must be at least 1")
    unknown = sorted(set(frozen) - modules | {name for name, _ in absent} - modules)
    if unknown:
        raise ValueError(f"'{unknown[0]}' is not one of {', '.join(sorted(modules))}")
    beyond = [m for _, m in absent if not 0 <= m < num_microbatches]
    if beyond:
        raise ValueError(f"micro-batch {beyond[0]} is not one of 0 to {num_microbatches - 1}")
    if loading is None:
        stages = range(len(graph.stages))
        loading = [s for s in stages if not graph.incoming[s] or not graph.outgoing[s]]
    schedule = Schedule(
        graph, num_microbatches, order, frozenset(frozen), frozenset(absent), frozenset(loading)
    )
    checked_tasks(schedule)
    return schedule


def checked_tasks(schedule: Schedule) -> TaskGraph:
    """Return the tasks of a schedule that mixes no messages up and never waits indefinitely.

    The check reads the tables that actions are made from, and the actions themselves only to
    describe a fault: a thousand micro-batches take milliseconds.

    Raises:
        ScheduleError: as `check_actions`.
    """
    tasks = task_graph(schedule)
    if tasks.faulty:
        check_actions(schedule.all_actions())
    return tasks


def check_actions(actions: Sequence[Sequence[Action]], *, blocking_sends: bool = False) -> None:
    """Check the actions of all stages before anything runs.

    Every send must have one receive and every receive one send. The messages of a pair of stages
    must be received in the order in which they are sent, because NCCL ignores tags; each edge has a
    communicator per direction there, so that a send waits for its own receive alone. No stage may
    wait for a stage that waits for it.

    Args:
        actions: of every set of ranks, in order.
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
    messages: dict[Pair, list[Message]] = {}
    for action in chain.from_iterable(actions):
        if action.kind in kinds:
            messages.setdefault(_pair(action), []).append(action.message)
    return messages


def _pair(action: Action) -> Pair:
    assert action.stage is not None, "a message has two ends"
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
    forward, edge, microbatch, modality = message
    what = "activations" if forward else "gradients"
    return f"the {what} of '{modality}' for micro-batch {microbatch} (edge {edge})"


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _check_waiting(actions: Sequence[Sequence[Action]], blocking_sends: bool) -> None:
    """Run all ranks as far as they can, until none advances; reject if some have not ended."""
    run = _WorkerProgress(actions, blocking_sends)
    awake = list(range(len(actions)))
    while awake:
        worker = awake.pop()
        awake += run.advance(worker)
    stuck = [worker for worker, program in enumerate(actions) if run.at[worker] < len(program)]
    if stuck:
        raise ScheduleError(_cycle_text(run.cycle(stuck[0])))


class _WorkerProgress:
    """The progress of every worker, that is, of the ranks with the same stages."""

    def __init__(self, actions: Sequence[Sequence[Action]], blocking_sends: bool) -> None:
        self.actions = actions
        self.blocking = blocking_sends
        self.at = [0] * len(actions)  # by worker: its next action
        self.under_way: set[Message] = set()
        self.computed: set[tuple[int | None, int | None]] = set()
        self._workers = {
            action.stage: worker for worker, program in enumerate(actions) for action in program
        }

    def advance(self, worker: int) -> Iterator[int]:
        """Run a worker until it waits; yield the workers that may continue now."""
        while (action := self._head(worker)) is not None:
            kind = action.kind
            if kind in SENDS:
                if self.blocking and not self._peer_is_at(action, RECEIVES):
                    return
                self.under_way.add(action.message)
                yield self._workers[action.peer]
            elif kind in RECEIVES:
                if action.message not in self.under_way:
                    if self.blocking and self._peer_is_at(action, SENDS):
                        yield self._workers[action.peer]  # its send can take place now
                    return
            elif kind == StepKind.FORWARD:
                self.computed.add((action.stage, action.microbatch))
            elif (
                kind == StepKind.BACKWARD and (action.stage, action.microbatch) not in self.computed
            ):
                return
            self.at[worker] += 1

    def _peer_is_at(self, action: Action, kinds: tuple[str, ...]) -> bool:
        """Return whether the peer of a message's action has come to the other end of it."""
        head = self._head(self._workers[action.peer])
        return head is not None and head.kind in kinds and head.message == action.message

    def _head(self, worker: int) -> Action | None:
        program = self.actions[worker]
        return program[self.at[worker]] if self.at[worker] < len(program) else None

    def cycle(self, worker: int) -> list[Action]:
        """Return the actions that wait for each other, from a worker that has not ended."""
        path: list[Action] = []
        while True:
            head = self._head(worker)
            assert head is not None, "ranks that others wait for have not ended"
            if head in path:
                return path[path.index(head) :]
            path.append(head)
            if head.peer is None:
                return [head]  # a backward before its own forward
            worker = self._workers[head.peer]


def _cycle_text(cycle: list[Action]) -> str:
    if len(cycle) == 1:
        action = cycle[0]
        return (
            f"Wait cycle: stage {action.stage} waits in {action} for its own forward of "
            f"{action.microbatch}, which comes after it."
        )
    links = [f"stage {action.stage} waits in {action}" for action in cycle]
    return f"Wait cycle: {', '.join(links)}, and so the first again."
