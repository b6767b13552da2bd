"""Who feeds whom, as layers that a picture can draw."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter


def layers_of(feeds: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Return the modules in layers: each module is in a later layer than all that feed it.

    Modules in a cycle, which a config rejects, are in the last layer.
    """
    feeding: dict[str, list[str]] = {name: [] for name in feeds}
    for name, targets in feeds.items():
        for target in targets:
            feeding.setdefault(target, []).append(name)
    order = TopologicalSorter(feeding)
    with contextlib.suppress(CycleError):
        order.prepare()
    layers: list[list[str]] = []
    left = dict.fromkeys(feeds)
    while ready := set(order.get_ready()):
        order.done(*ready)
        if layer := [name for name in left if name in ready]:
            layers.append(layer)
        left = dict.fromkeys(name for name in left if name not in ready)
    return [*layers, list(left)] if left else layers
