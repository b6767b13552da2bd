"""The graph of modules: who feeds whom."""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

Topology = Mapping[str, Collection[str]]
"""Module -> the modules that it feeds; a module that is left out feeds none."""

Edges = tuple[tuple[str, tuple[str, ...]], ...]


def edges(topology: Topology) -> Edges:
    """Return a topology that has a hash."""
    return tuple((name, tuple(fed)) for name, fed in topology.items())


def topological_order(topology: Topology) -> tuple[str, ...]:
    """Return the modules so that each comes before those it feeds, else in the order given.

    Raises:
        ValueError: the modules feed each other in a cycle; the sentence spells it out.
    """
    return _in_order(edges(topology))


@lru_cache(maxsize=256)
def _in_order(edges: Edges) -> tuple[str, ...]:
    cycle = find_cycle(dict(edges))
    if cycle:
        raise ValueError(f"the modules feed each other in a cycle: {' -> '.join(cycle)}")
    waits_for = _feeders(dict(edges))
    order: list[str] = []
    while len(order) < len(waits_for):
        # The first that can come, every time: ties keep the order given.
        order.append(
            next(
                name
                for name, feeders in waits_for.items()
                if name not in order and feeders <= set(order)
            )
        )
    return tuple(order)


def find_cycle(topology: Topology) -> tuple[str, ...]:
    """Return modules that feed each other in a circle, the first again at the end, or ()."""
    waits_for = _feeders(topology)
    left = set(waits_for)
    while True:
        free = {name for name in left if not waits_for[name] & left}
        if not free:
            break
        left -= free
    if not left:
        return ()
    # Every module that is left waits for another one that is left: following them closes a cycle.
    path = [next(name for name in waits_for if name in left)]
    while path[-1] not in path[:-1]:
        path.append(next(name for name in waits_for if name in waits_for[path[-1]] & left))
    return tuple(reversed(path[path.index(path[-1]) :]))


def upstream(topology: Topology, module: str) -> frozenset[str]:
    """Return the modules whose output reaches a module, at any distance."""
    return _reached(_feeders(topology), module)


def downstream(topology: Topology, module: str) -> frozenset[str]:
    """Return the modules that the output of a module reaches, at any distance."""
    return _reached(topology, module)


def paths(topology: Topology, source: str, target: str) -> int:
    """Return the number of paths from one module to another in an acyclic graph; 1 to itself."""
    return _paths(edges(topology), source, target)


@lru_cache(maxsize=256)
def _paths(edges: Edges, source: str, target: str) -> int:
    graph, leading = dict(edges), {source: 1}
    for name in topological_order(graph):
        for fed in graph.get(name, ()):
            leading[fed] = leading.get(fed, 0) + leading.get(name, 0)
    return leading.get(target, 0)


def names_of(topology: Topology) -> tuple[str, ...]:
    """Return every module of the graph: first those that it lists, then those only fed."""
    fed = (name for targets in topology.values() for name in targets)
    return tuple(dict.fromkeys((*topology, *fed)))


def _feeders(topology: Topology) -> dict[str, set[str]]:
    feeders: dict[str, set[str]] = {name: set() for name in names_of(topology)}
    for name, targets in topology.items():
        for target in targets:
            feeders[target].add(name)
    return feeders


def _reached(following: Mapping[str, Iterable[str]], begin: str) -> frozenset[str]:
    reached: set[str] = set()
    ahead = [begin]
    while ahead:
        for name in following.get(ahead.pop(), ()):
            if name not in reached:
                reached.add(name)
                ahead.append(name)
    return frozenset(reached)


class ModuleGraph(NamedTuple):
    """Who feeds whom in a config, and the modules by their place, in the order of the config."""

    topology: dict[str, tuple[str, ...]]
    encoders: tuple[str, ...]
    adapters: tuple[str, ...]
    decoders: tuple[str, ...]


@lru_cache
def module_graph(names: tuple[str, ...], stated: Edges | None, language: str) -> ModuleGraph:
    """Return the graph of modules, which rules ask for a hundred times a plan."""
    left_out = ((name, (language,)) for name in names if name != language)
    feeds = dict(left_out if stated is None else stated)
    graph = {name: tuple(dict.fromkeys(feeds.get(name, ()))) for name in (*names, *feeds)}
    before, behind = upstream(graph, language) - {language}, downstream(graph, language)
    encoders = tuple(name for name in names if name in before)
    fed = {name for targets in graph.values() for name in targets}
    adapters = tuple(name for name in encoders if name in fed)
    return ModuleGraph(graph, encoders, adapters, tuple(n for n in names if n in behind))
