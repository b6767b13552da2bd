"""Reads a recording of `mimokit.watch`, and puts the parts of its ranks together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from mimokit.result_files import WatchFile

Key = tuple[int, int, str, str]
"""Step, call of the model, phase, operation."""

BEFORE, BACKWARD = "weight before", "backward"

PHASES = (BEFORE, "forward", BACKWARD, "gradient", "weight")
OF_CALLS = ("forward", BACKWARD)

Array = NDArray[np.float32]


@dataclass(frozen=True)
class RecordedPart:
    """A tensor of a rank, and what is known of its place in the whole."""

    rank: int
    values: Array
    about: dict[str, Any]


@dataclass(frozen=True)
class Recorded:
    """What all ranks have recorded.

    Attributes:
        parts: tensor -> its parts, of each rank that has one.
        seed: of torch, on the first rank.
        drops: modules that dropped activations.
    """

    parts: dict[Key, list[RecordedPart]]
    steps: int
    seed: int
    drops: tuple[str, ...]

    def names(self) -> list[str]:
        """Return modules and parameters of which there is a tensor."""
        return sorted({key[3] for key in self.parts})

    def in_order(self) -> list[tuple[Key, list[RecordedPart]]]:
        """Return all tensors in the order of execution."""
        return sorted(self.parts.items(), key=lambda item: _order(*item))


def read_recording(folder: Path) -> Recorded:
    """Read the files of all ranks.

    Raises:
        ValueError: the folder is no recording, or one that was cut off.
    """
    index = folder / WatchFile.INDEX.of_rank(0)
    if not index.is_file():
        raise ValueError(
            f"{folder} is no recording, or one that was cut off: {index.name} is missing; record "
            "again with mimokit.watch."
        )
    world = json.loads(index.read_text(encoding="utf-8"))
    found: dict[Key, list[RecordedPart]] = {}
    for rank in range(world["world_size"]):
        own = folder / WatchFile.INDEX.of_rank(rank)
        tensors = folder / WatchFile.TENSORS.of_rank(rank)
        if not own.is_file() or not tensors.is_file():
            raise ValueError(
                f"{folder} was cut off: rank {rank} of {world['world_size']} has left no whole "
                "recording; record again with mimokit.watch."
            )
        try:
            stored = load_file(tensors)
        except Exception as error:
            raise ValueError(f"{tensors} cannot be read: {error}.") from None
        for about in json.loads(own.read_text(encoding="utf-8"))["seams"]:
            key = about["step"], about["call"], about["phase"], about["operation"]
            part = RecordedPart(rank, stored[about["tensor"]], about)
            found.setdefault(key, []).append(part)
    return Recorded(found, world["steps"], world["seed"], tuple(world["drops"]))


def _order(key: Key, parts: Sequence[RecordedPart]) -> tuple[int, ...]:
    step, call, phase, _ = key
    place = PHASES.index(phase)
    when = -1 if phase == BEFORE else call if phase in OF_CALLS else 1 << 30
    return step, when, place, int(parts[0].about["tensor"])


def assembled(parts: Sequence[RecordedPart], others: Sequence[RecordedPart]) -> Array | None:
    """Return the whole of the parts of all ranks; `others` are those of the other recording."""
    about = parts[0].about
    if "whole" in about:
        return _by_offsets(parts)
    if "share" in about:
        return _by_shares(parts)
    return _by_shapes([part.values for part in parts], _whole_shapes(others))


def _by_offsets(parts: Sequence[RecordedPart]) -> Array:
    total: Array | None = None
    summands = dict.fromkeys(tuple(part.about.get("summand", ())) for part in parts)
    for summand in summands:
        own = np.zeros(parts[0].about["whole"], np.float32)
        for part in parts:
            if tuple(part.about.get("summand", ())) == summand:
                pairs = zip(part.about["offset"], part.values.shape, strict=True)
                own[tuple(slice(start, start + size) for start, size in pairs)] = part.values
        total = own if total is None else total + own
    assert total is not None
    return total


def _by_shares(parts: Sequence[RecordedPart]) -> Array:
    """Join the shares of tensor-parallel ranks, each of which has a share of every equal part."""
    shares = {part.about["share"][0]: part for part in reversed(parts)}
    dimension, number = parts[0].about["dimension"], parts[0].about["parts"]
    pieces = [np.split(shares[rank].values, number, dimension) for rank in sorted(shares)]
    in_order = [piece[index] for index in range(number) for piece in pieces]
    return np.concatenate(in_order, dimension)


def _whole_shapes(parts: Sequence[RecordedPart]) -> set[tuple[int, ...]]:
    """Return which shape a whole tensor has, as far as one recording tells."""
    about = parts[0].about
    if "whole" in about:
        return {tuple(about["whole"])}
    if "share" in about:
        return {_by_shares(parts).shape}
    return {part.values.shape for part in parts}


def _by_shapes(values: Sequence[Array], shapes: set[tuple[int, ...]]) -> Array | None:
    own = {value.shape for value in values}
    if len(own) > 1 or len(shapes) > 1:
        return None
    (shape,), (whole,) = own, shapes
    if len(shape) != len(whole):
        return None
    larger = [n for n, (a, b) in enumerate(zip(shape, whole, strict=True)) if b > a]
    if not larger:
        return values[0] if all(np.allclose(v, values[0], 1e-4, 1e-7) for v in values) else (
            _differing(values)
        )  # fmt: skip
    if len(larger) > 1 or whole[larger[0]] != len(values) * shape[larger[0]]:
        return None
    return np.concatenate(values, larger[0])


def _differing(values: Sequence[Array]) -> Array:
    """Return, of copies that are not alike, the one that is farthest from the first."""
    return max(values, key=lambda value: float(np.abs(value - values[0]).max()))
