"""The order of all messages between ranks, for a backend that ignores tags, as NCCL does."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass

from mimokit.planning.bridges.routes import Transfer, numbered
from mimokit.planning.schedule import Action, ScheduleError
from mimokit.planning.schedule.queues import Await, Post, QueuedPrograms
from mimokit.planning.types import LayoutPlan
from mimokit.step_kinds import BRIDGES, RECEIVES, StepKind

Channel = tuple[int, int]
"""Edge and direction: 0 for activations, 1 for gradients."""


@dataclass(frozen=True, slots=True)
class RankMessage:
    """A message from one rank to another.

    Attributes:
        direction: 0 for activations, 1 for gradients.
        split: its number among those of the same two ranks over the edge in the micro-batch.
    """

    edge: int
    direction: int
    microbatch: int
    source: int
    destination: int
    split: int = 0

    @property
    def channel(self) -> Channel:
        """What has a communicator of its own."""
        return self.edge, self.direction


def channels(plan: LayoutPlan) -> tuple[Channel, ...]:
    """Return what has a communicator of its own on NCCL, which ignores tags."""
    return tuple((edge.index, way) for edge in plan.program.graph.edges for way in (0, 1))


def check_messages(
    plan: LayoutPlan, communicator: Callable[[RankMessage], Hashable] = lambda each: each.channel
) -> None:
    """Check that no rank waits indefinitely where messages of a communicator hold it.

    A message is a header, and what it describes: a rank posts that when the headers of all messages
    of an action have arrived.

    Args:
        communicator: of a message.

    Raises:
        ScheduleError: ranks wait for each other, action by action, or would mix messages up.
    """
    if plan.pipeline is None:
        return
    ranks = sorted({rank for module in plan.modules.values() for rank in module.ranks})
    number = {rank: index for index, rank in enumerate(ranks)}
    programs = [
        list(_operations(plan, rank, plan.program.actions(rank), number, communicator))
        for rank in ranks
    ]
    run = QueuedPrograms(programs)
    stuck = run.run()
    if stuck:
        links = [
            f"rank {ranks[each]} waits in {run.waiting_text(each)}" for each in run.cycle(stuck[0])
        ]
        raise ScheduleError(f"Wait cycle: {', '.join(links)}, and so the first again.")


def _operations(
    plan: LayoutPlan,
    rank: int,
    actions: Iterable[Action],
    number: dict[int, int],
    communicator: Callable[[RankMessage], Hashable],
) -> Iterator[Post | Await]:
    """Yield what a rank posts and waits for, as the executor's communicator does."""
    for action in actions:
        sends, receives = _ends(plan, rank, action)
        messages = list(_messages(plan, action)) if sends or receives else []
        for message in messages if sends else ():
            if message.source == rank:
                end = number[message.destination], communicator(message)
                for part in ("header", "content"):
                    yield Post(True, *end, (message, part), action)
        arriving = [each for each in messages if receives and each.destination == rank]
        for part in ("header", "content"):
            posts = [
                Post(False, number[each.source], communicator(each), (each, part), action)
                for each in arriving
            ]
            yield from posts
            yield from map(Await, posts)


def _ends(plan: LayoutPlan, rank: int, action: Action) -> tuple[bool, bool]:
    if action.edge is None:
        return False, False
    if action.kind not in BRIDGES:
        return action.kind not in RECEIVES, action.kind in RECEIVES
    # An encoder next to the stages of a pipeline, whose first stage is on some of its ranks.
    edge = plan.program.graph.edges[action.edge]
    if plan.edge_route(edge, backward=False) is None:
        return False, False
    is_fed = rank in plan.program.ranks[edge.destination]
    return (True, is_fed) if action.kind == StepKind.GATHER else (is_fed, True)


def _messages(plan: LayoutPlan, action: Action) -> Iterator[RankMessage]:
    assert action.edge is not None
    assert action.microbatch is not None
    backward = action.kind in (StepKind.SCATTER, StepKind.SEND_BACKWARD, StepKind.RECEIVE_BACKWARD)
    edge = plan.program.graph.edges[action.edge]
    transfers: tuple[Transfer, ...] = plan.edge_transfers(edge, backward=backward)
    route = plan.edge_route(edge, backward=backward)
    index = edge.index if route is None else _first_edge(plan, edge.modality, edge.destination)
    for transfer, split in numbered(transfers):
        if transfer.moves:
            yield RankMessage(index, int(backward), action.microbatch, *transfer.ends, split)


def _first_edge(plan: LayoutPlan, modality: str, destination: int) -> int:
    graph = plan.program.graph
    fed = graph.stages[destination].module
    to_it = (edge for edge in graph.edges if graph.stages[edge.destination].module == fed)
    return min(edge.index for edge in to_it if edge.modality == modality)
