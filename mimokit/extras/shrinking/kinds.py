"""What a layout has of groups, bridges and schedule patterns, without its numbers."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from mimokit.axes import EXPERT_GRID_AXES, GRID_AXES, Axis
from mimokit.planning import Transfer
from mimokit.planning.execution import ModuleExecution
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.schedule import Action, StageGraph
from mimokit.planning.types import Bridge, DisjointBridge, LayoutPlan


def kinds_of(plan: LayoutPlan) -> frozenset[str]:
    """Return each kind in words; two layouts of the same kinds run the same code.

    A kind is an axis over which a module has groups, what a group of experts spans, a way of
    executing a module, the direction of a bridge and how its ends meet, and a pair of actions that
    follow each other on a rank at a place of a pipeline.
    """
    kinds = {f"ranks are {plan.deployment_mode}"}
    for name, ranks in plan.modules.items():
        kinds |= {f"module {name!r}: {kind}" for kind in _groups(ranks)}
        kinds |= {f"module {name!r}: {kind}" for kind in _execution(plan.executions[name])}
    for bridge in plan.bridges:
        ends = f"bridge from {bridge.source!r} to {bridge.destination!r}"
        kinds |= {f"{ends}: {kind}" for kind in _bridge(bridge)}
    graph = plan.program.graph
    places = tuple(_place(graph, stage.index) for stage in graph.stages)
    for actions in plan.program.schedule.all_actions():
        kinds |= _patterns(places, actions)
    return frozenset(kinds)


def _groups(ranks: ModuleRanks) -> Iterator[str]:
    experts = ranks.expert_view()
    sizes = {axis: ranks.size_of(str(axis)) for axis in GRID_AXES}
    sizes |= {axis: experts.size_of(str(axis)) for axis in EXPERT_GRID_AXES}
    for axis, size in sizes.items():
        if size > 1:
            yield f"several ranks along {axis}"
    if sizes[Axis.EXPERT] > 1:
        first = ranks.coordinates(ranks.ranks.start)
        group = experts.group_of(ranks.ranks.start, str(Axis.EXPERT))
        for name in map(str, GRID_AXES):
            if any(ranks.coordinates(rank)[name] != first[name] for rank in group):
                yield f"experts spread along {name}"


def _execution(execution: ModuleExecution) -> Iterator[str]:
    if execution.sizes.virtual > 1:
        yield "several chunks of a stage"
    if execution.sizes.instances > 1:
        yield "several replicas of the optimizer's shards"


def _bridge(bridge: Bridge) -> Iterator[str]:
    yield f"{bridge.kind}, {bridge.direction}"
    if isinstance(bridge, DisjointBridge):
        for way, route in (("forward", bridge.forward), ("backward", bridge.backward)):
            yield from (f"{way}, {kind}" for kind in _meetings(route.transfers))


def _meetings(transfers: Sequence[Transfer]) -> Iterator[str]:
    receivers, senders = defaultdict[int, set[int]](set), defaultdict[int, set[int]](set)
    parts = defaultdict[int, set[tuple[int, int]]](set)
    for transfer in transfers:
        if not transfer.moves:
            yield "a rank keeps samples"
            continue
        receivers[transfer.source_rank].add(transfer.destination_rank)
        senders[transfer.destination_rank].add(transfer.source_rank)
        parts[transfer.source_rank].add((transfer.start, transfer.stop))
    for what, several in (
        ("a rank sends to several", receivers),
        ("a rank receives from several", senders),
        ("a rank sends different samples to different ranks", parts),
    ):
        if any(len(others) > 1 for others in several.values()):
            yield what


def _place(graph: StageGraph, index: int) -> str:
    module = graph.stages[index].module

    def inside(others: Sequence[int]) -> bool:
        return any(graph.stages[other].module == module for other in others)

    receives = inside([edge.source for edge in graph.incoming[index]])
    sends = inside([edge.destination for edge in graph.outgoing[index]])
    where = {(False, False): "", (False, True): " first", (True, False): " last"}
    return f"{module}{where.get((receives, sends), ' middle')}"


def _patterns(places: Sequence[str], actions: Sequence[Action]) -> set[str]:
    patterns = set()
    for action, following in pairwise(actions):
        batches = action.microbatch, following.microbatch
        order = ""
        if None not in batches and batches[0] != batches[1]:
            order = " of another micro-batch"
        patterns.add(f"{_words(places, action)}, then {_words(places, following)}{order}")
    return patterns


def _words(places: Sequence[str], action: Action) -> str:
    place = "" if action.stage is None else f" at {places[action.stage]}"
    return f"{action.kind}{place}"
