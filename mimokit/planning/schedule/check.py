"""Make a schedule; reject one that would lose a message, mix messages up or wait indefinitely."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from mimokit.planning.schedule.actions import Action, Message, Order, ScheduleError
from mimokit.planning.schedule.graph import StageGraph
from mimokit.planning.schedule.orders import one_forward_one_backward
from mimokit.planning.schedule.queues import Await, Post, QueuedPrograms
from mimokit.planning.schedule.run import ScheduleRun, Table
from mimokit.planning.schedule.schedule import Schedule
from mimokit.step_kinds import COMPUTATIONS, RECEIVES, SENDS, StepKind

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
    _check(schedule)
    return schedule


def checked_run(
    schedule: Schedule, computing: Sequence[Table], sending: Sequence[Table], **options: Any
) -> ScheduleRun:
    """Return the run of a schedule that mixes no messages up and never waits indefinitely.

    Its actions are read only to describe a fault. Arguments are those of `ScheduleRun`.

    Raises:
        ScheduleError: the first fault found.
    """
    run = ScheduleRun(schedule, computing, sending, **options)
    if run.end is None:
        check_actions(schedule.all_actions())
    return run


@lru_cache(maxsize=64)
def _check(schedule: Schedule) -> None:
    graph, row = schedule.graph, [0.0] * schedule.num_microbatches
    checked_run(schedule, [[row] * len(graph.stages)] * 3, [[row] * len(graph.edges)] * 2)


def edge_and_direction(message: Message) -> Hashable:
    """Return the communicator of a message on NCCL: each edge has one per direction."""
    forward, edge, _, _ = message
    return edge, forward


def check_actions(
    actions: Sequence[Sequence[Action]],
    *,
    blocking_sends: bool = False,
    communicator: Callable[[Message], Hashable] = edge_and_direction,
) -> None:
    """Check the actions of all stages before anything runs.

    Every send must have one receive and every receive one send. The messages of a pair of stages
    must be received in the order in which they are sent, because NCCL ignores tags. No stage may
    wait for a stage that waits for it.

    Args:
        actions: of every set of ranks, in order.
        blocking_sends: a message holds its communicator, at both ends, until both have come to it,
            as one of NCCL does; messages of other communicators pass it. False: no message waits
            for another.
        communicator: of a message, with blocking_sends.

    Raises:
        ScheduleError: the first fault found, in one sentence; a cycle is listed action by action.
    """
    sent, received = _traffic(actions, SENDS), _traffic(actions, RECEIVES)
    for pair in sorted(sent.keys() | received.keys()):
        _check_pair(pair, sent.get(pair, []), received.get(pair, []))
    for program in actions:
        _check_own_order(program)
    _check_waiting(actions, communicator if blocking_sends else lambda message: message)


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


def _check_own_order(program: Iterable[Action]) -> None:
    computed: set[tuple[StepKind, int | None, int | None]] = set()
    for action in program:
        if action.kind not in COMPUTATIONS:
            continue
        computed.add((action.kind, action.stage, action.microbatch))
        before = COMPUTATIONS[max(0, COMPUTATIONS.index(action.kind) - 1)]
        if (before, action.stage, action.microbatch) not in computed:
            raise ScheduleError(
                f"Wait cycle: stage {action.stage} waits in {action} for its own {before} of "
                f"{action.microbatch}, which comes after it."
            )


def _check_waiting(
    actions: Sequence[Sequence[Action]], queue: Callable[[Message], Hashable]
) -> None:
    workers = {action.stage: worker for worker, own in enumerate(actions) for action in own}
    run = QueuedPrograms([list(_operations(own, workers, queue)) for own in actions])
    stuck = run.run()
    if stuck:
        links = [
            f"stage {run.waiting(worker)[0].action.stage} waits in {run.waiting_text(worker)}"
            for worker in run.cycle(stuck[0])
        ]
        raise ScheduleError(f"Wait cycle: {', '.join(links)}, and so the first again.")


def _operations(
    program: Iterable[Action],
    workers: Mapping[int | None, int],
    queue: Callable[[Message], Hashable],
) -> Iterator[Post | Await]:
    for action in program:
        if action.kind in (*SENDS, *RECEIVES):
            message, peer = action.message, workers[action.peer]
            post = Post(action.kind in SENDS, peer, queue(message), message, action)
            yield post
            if not post.sends:
                yield Await(post)
