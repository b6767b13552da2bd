"""Which tensors of a model travel together in Streaming DiLoCo."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from mimokit.architecture.tensor_cut import Shape


def fragments_of(shapes: Mapping[str, Shape], count: int) -> tuple[tuple[str, ...], ...]:
    """Return the names of the tensors of each fragment.

    Layers are strided: layer l belongs to fragment l mod `count`. A layer is what shares a name up
    to its first number, `blocks.3` say; layers are counted in their order. What is outside layers
    goes, the largest tensor first, where there are the fewest entries.
    """
    layers: dict[tuple[str, ...], int] = {}
    placed: dict[str, int] = {}
    for name in shapes:
        layer = _layer(name)
        if layer is not None:
            placed[name] = layers.setdefault(layer, len(layers)) % count
    entries = [0] * count
    for name, fragment in placed.items():
        entries[fragment] += math.prod(shapes[name])
    outside = (name for name in shapes if name not in placed)
    for name in sorted(outside, key=lambda name: -math.prod(shapes[name])):
        placed[name] = entries.index(min(entries))
        entries[placed[name]] += math.prod(shapes[name])
    return tuple(
        tuple(name for name in shapes if placed[name] == fragment) for fragment in range(count)
    )


def in_order(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return shapes by name, ascending, numbers within names by their value.

    Ranks that hold parts of a model make one order of all its tensors of it.
    """

    def key(name: str) -> list[tuple[int, str]]:
        return [(int(one), "") if one.isdigit() else (-1, one) for one in re.split(r"(\d+)", name)]

    return {name: shapes[name] for name in sorted(shapes, key=key)}


def _layer(name: str) -> tuple[str, ...] | None:
    parts = name.split(".")
    numbers = (place for place, part in enumerate(parts) if part.isdigit())
    first = next(numbers, None)
    return None if first is None else tuple(parts[: first + 1])
