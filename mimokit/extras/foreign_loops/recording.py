"""Reads a recording of `mimokit.watch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from mimokit.config.text_file import open_regular, read_json, reason_of
from mimokit.planning.digests import digest_of_file, is_as_sealed

Key = tuple[int, int, str, str]
"""Step, call of the model, phase, operation."""

BEFORE, FORWARD, BACKWARD, GRADIENT, WEIGHT = PHASES = (
    "weight before", "forward", "backward", "gradient", "weight",
)  # fmt: skip
OF_CALLS = (FORWARD, BACKWARD)
MOST_RANKS = 2**20

Array = NDArray[np.float32]


class WatchFile(StrEnum):
    """The files of a recording of `mimokit.watch`, for every rank."""

    INDEX = "rank-{}.json"
    TENSORS = "rank-{}.safetensors"

    def of_rank(self, rank: int) -> str:
        """Return the name of the file of a rank."""
        return self.value.format(rank)


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
    """

    parts: dict[Key, list[RecordedPart]]
    steps: int
    seed: int
    drops: tuple[str, ...]
    ranks: int

    def names(self) -> list[str]:
        """Return modules and parameters of which there is a tensor."""
        return sorted({key[3] for key in self.parts})

    def renamed(self, names: Mapping[str, str]) -> Recorded:
        """Return it with other names of modules, what is inside of them, and parameters.

        Raises:
            ValueError: it has no such name.
        """
        known = self.names()
        for name in names:
            if not any(_is_inside(each, name) for each in known):
                raise ValueError(
                    f"The second recording has no {name}; it has {', '.join(known[:3])}, …"
                )
        changed = {}
        for (step, call, phase, operation), parts in self.parts.items():
            outer = max((n for n in names if _is_inside(operation, n)), key=len, default=None)
            inner = "" if outer is None else operation[len(outer) :]
            new = operation if outer is None else names[outer] + inner
            changed[step, call, phase, new] = parts
        return replace(self, parts=changed)

    def cut(self, cuts: Mapping[str, int]) -> Recorded:
        """Return it with dimensions along which ranks cut tensors, in the order of the ranks.

        Raises:
            ValueError: a tensor has no such dimension.
        """
        changed = dict(self.parts)
        for key, parts in self.parts.items():
            if key[3] not in cuts or len(parts) < 2:
                continue
            dimension = cuts[key[3]]
            if not -parts[0].values.ndim <= dimension < parts[0].values.ndim:
                raise ValueError(
                    f"{key[3]} has {parts[0].values.ndim} dimensions; none is {dimension}."
                )
            group = [part.rank for part in parts]
            changed[key] = [
                replace(
                    part,
                    about={
                        **{name: part.about[name] for name in ("tensor", "dtype")},
                        "dimension": dimension, "parts": 1, "share": [index, len(parts)],
                        "group": group,
                    },
                )
                for index, part in enumerate(parts)
            ]  # fmt: skip
        return replace(self, parts=changed)

    def in_order(self) -> list[tuple[Key, list[RecordedPart]]]:
        """Return all tensors in the order of execution."""
        return sorted(self.parts.items(), key=lambda item: _order(*item))


def _is_inside(name: str, outer: str) -> bool:
    return name == outer or name.startswith(f"{outer}.")


def read_recording(folder: Path) -> Recorded:
    """Read the files of all ranks.

    Raises:
        ValueError: the folder is no recording, one that was cut off, or several that were mixed.
    """
    first = folder / WatchFile.INDEX.of_rank(0)
    if not first.is_file():
        raise ValueError(
            f"{folder} is no recording, or one that was cut off: {first.name} is missing; record "
            "again with mimokit.watch."
        )
    world = _index(first)
    tensors_of: dict[Key, list[RecordedPart]] = {}
    for rank in range(world["world_size"]):
        index = folder / WatchFile.INDEX.of_rank(rank)
        tensors = folder / WatchFile.TENSORS.of_rank(rank)
        if not index.is_file() or not tensors.is_file():
            raise ValueError(
                f"{folder} was cut off: rank {rank} of {world['world_size']} has left no whole "
                "recording; record again with mimokit.watch."
            )
        about = _index(index)
        stored, recording = _tensors(tensors, about.get("tensors"))
        if {about["recording"], recording} != {world["recording"]}:
            raise ValueError(
                f"{folder} has files of several recordings: those of rank {rank} are of another "
                "one than that of rank 0; record again into an empty folder."
            )
        for seam in about["seams"]:
            if seam["tensor"] not in stored:
                raise ValueError(
                    f"{tensors} has no tensor {seam['tensor']}, which {index.name} lists; record "
                    "again with mimokit.watch."
                )
            key = seam["step"], seam["call"], seam["phase"], seam["operation"]
            tensors_of.setdefault(key, []).append(RecordedPart(rank, stored[seam["tensor"]], seam))
    tensors_of = {key: _of_one_stage(key, parts) for key, parts in tensors_of.items()}
    return Recorded(
        tensors_of, world["steps"], world["seed"], tuple(world["drops"]), world["world_size"]
    )


def _of_one_stage(key: Key, parts: list[RecordedPart]) -> list[RecordedPart]:
    """Return the parts of the stage that has the end of what several stages compute together.

    The output of all layers is that of the last stage, the gradient of their input that of the
    first.
    """
    stages = {part.about.get("stage", 0) for part in parts}
    end = min(stages) if key[2] == BACKWARD else max(stages)
    if len(stages) == 1 or key[2] not in OF_CALLS:
        return parts
    return [part for part in parts if part.about.get("stage", 0) == end]


_INDEX = {
    "recording": str, "world_size": int, "steps": int, "seed": int, "drops": list, "seams": list,
}  # fmt: skip
_SEAM = {
    "step": int, "call": int, "phase": str, "operation": str, "tensor": str, "dtype": str,
}  # fmt: skip


_WHOLE = ("stage", "dimension", "parts")
_LISTS = ("share", "group", "whole", "offset", "context", "chunks", "experts")
"""Of whole numbers, where a seam has them."""


def _index(path: Path) -> dict[str, Any]:
    try:
        about = read_json(path)
    except (ValueError, OSError) as error:
        why = reason_of(error) if isinstance(error, OSError | UnicodeDecodeError) else error
        raise ValueError(
            f"{path} cannot be read ({why}); record again with mimokit.watch."
        ) from None
    if (
        not _has(about, _INDEX)
        or not 0 < about["world_size"] <= MOST_RANKS
        or not all(_is_seam(seam) for seam in about["seams"])
    ):
        raise ValueError(
            f"{path} was not written by this version of mimokit.watch: it should have "
            f"{', '.join(_INDEX)}, and of each seam {', '.join(_SEAM)}; record again."
        )
    if not is_as_sealed(about):
        raise ValueError(f"{path} has another content than was recorded; record again.")
    return dict(about)


def _is_seam(seam: Any) -> bool:
    return (
        _has(seam, _SEAM)
        and seam["phase"] in PHASES
        and seam["tensor"].isdecimal()
        and all(_is_whole(seam.get(name, 0)) for name in _WHOLE)
        and all(_are_whole(seam.get(name, [])) for name in _LISTS)
    )


def _has(about: Any, kinds: dict[str, type]) -> bool:
    return isinstance(about, dict) and all(
        isinstance(about.get(name), kind) and not isinstance(about.get(name), bool)
        for name, kind in kinds.items()
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_whole(values: Any) -> bool:
    return isinstance(values, list) and all(map(_is_whole, values))


def _tensors(path: Path, digest: object) -> tuple[dict[str, Array], str]:
    try:
        with open_regular(path, "rb"):  # a pipe would be waited for
            pass
        if digest is not None and digest_of_file(path) != digest:
            raise ValueError("it has other bytes than were recorded")
        with safe_open(path, "numpy") as file:
            names = file.keys()
            stored = {name: file.get_tensor(name) for name in names}
            return stored, (file.metadata() or {}).get("recording", "")
    except Exception as error:
        why = reason_of(error) if isinstance(error, OSError) else error
        raise ValueError(
            f"{path} cannot be read ({why}); record again with mimokit.watch."
        ) from None


def _order(key: Key, parts: Sequence[RecordedPart]) -> tuple[int, ...]:
    step, call, phase, _ = key
    place = PHASES.index(phase)
    when = -1 if phase == BEFORE else call if phase in OF_CALLS else 1 << 30
    stage = parts[0].about.get("stage", 0)
    stage = -stage if phase == BACKWARD else stage
    return step, when, place, stage, int(parts[0].about["tensor"])
