"""Paths through the graph of modules, of one layout or of an array of layouts."""

from collections.abc import Callable, Iterable, Mapping
from functools import reduce

import numpy as np

from mimokit.architecture.parallel_sizes import Numbers

Edges = Iterable[tuple[str, tuple[str, ...]]]
"""(Module, the modules that it feeds), feeders first."""


def before(
    edges: Edges,
    own: Mapping[str, Numbers],
    between: Callable[[str, str], Numbers] = lambda source, target: 0.0,
) -> dict[str, Numbers]:
    """Return module -> the sum along the heaviest path that leads to it, without itself.

    Args:
        own: what each module adds.
        between: what a move from one module to another adds.
    """
    sums: dict[str, Numbers] = {}
    for name, targets in edges:
        start = sums.setdefault(name, 0.0)
        for target in targets:
            reached = start + own[name] + between(name, target)
            sums[target] = np.maximum(sums[target], reached) if target in sums else reached
    return sums


def heaviest(
    edges: Edges,
    own: Mapping[str, Numbers],
    between: Callable[[str, str], Numbers] = lambda source, target: 0.0,
) -> Numbers:
    """Return the sum along the heaviest path; see `before`."""
    reached = before(edges, own, between)
    return reduce(np.maximum, (reached[name] + own[name] for name in own))


def around(edges: Edges, own: Mapping[str, Numbers]) -> dict[str, tuple[Numbers, Numbers]]:
    """Return module -> what is before it, and what the heaviest path has behind it."""
    reached, whole = before(edges, own), heaviest(edges, own)
    return {name: (reached[name], whole - reached[name] - own[name]) for name in own}
