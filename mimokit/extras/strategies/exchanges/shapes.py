"""Names and shapes of the tensors that a strategy exchanges."""

import math
import re
from collections.abc import Mapping

from mimokit.architecture.tensor_cut import Shape
from mimokit.config import StrategyConfig


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
        parts = re.split(r"(\d+)", name)
        return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]

    return {name: shapes[name] for name in sorted(shapes, key=key)}


def _layer(name: str) -> tuple[str, ...] | None:
    parts = name.split(".")
    first = next((place for place, part in enumerate(parts) if part.isdigit()), None)
    return None if first is None else tuple(parts[: first + 1])


Shapes = tuple[tuple[str, Shape], ...]


def shapes_of_size(config: StrategyConfig, parameters: int) -> dict[str, Shape]:
    """Return shapes of so many parameters, where those of the tensors are not known.

    They are taken as one matrix whose sides DeMo cuts into whole blocks, and a rest; for Streaming
    DiLoCo as many layers as there are fragments, of nearly equal size.
    """
    side = config.compression_chunk
    rows = parameters // side**2 * side
    shapes: dict[str, Shape] = {"matrix": (rows, side), "rest": (parameters - rows * side,)}
    if config.name == "streaming_diloco":
        part, rest = divmod(parameters, config.fragments)
        shapes = {f"layers.{n}": (part + (n < rest),) for n in range(config.fragments)}
    return {name: shape for name, shape in shapes.items() if all(shape)}
