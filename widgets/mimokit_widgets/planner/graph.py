"""The graph of modules in layers, as it is drawn."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def layers_of(feeds: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Return the modules so that each stands right of all that feed it.

    Modules in a cycle, which a config refuses, stand in the last layer.
    """
    left = dict.fromkeys(feeds)
    layers: list[list[str]] = []
    while left:
        fed = {target for name in left for target in feeds[name]}
        layer = [name for name in left if name not in fed] or list(left)
        layers.append(layer)
        for name in layer:
            del left[name]
    return layers
