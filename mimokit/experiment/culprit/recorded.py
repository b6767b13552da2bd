"""Reads a recording of `mimokit.watch`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

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
    ranks: int

    def names(self) -> list[str]:
        """Return modules and parameters of which there is a tensor."""
        return sorted({key[3] for key in self.parts})

    def in_order(self) -> list[tuple[Key, list[RecordedPart]]]:
        """Return all tensors in the order of execution."""
        return sorted(self.parts.items(), key=lambda item: _order(*item))


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
    found: dict[Key, list[RecordedPart]] = {}
    for rank in range(world["world_size"]):
        index = folder / WatchFile.INDEX.of_rank(rank)
        tensors = folder / WatchFile.TENSORS.of_rank(rank)
        if not index.is_file() or not tensors.is_file():
            raise ValueError(
                f"{folder} was cut off: rank {rank} of {world['world_size']} has left no whole "
                "recording; record again with mimokit.watch."
            )
        about, (stored, recording) = _index(index), _tensors(tensors)
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
            found.setdefault(key, []).append(RecordedPart(rank, stored[seam["tensor"]], seam))
    return Recorded(
        found, world["steps"], world["seed"], tuple(world["drops"]), world["world_size"]
    )


_INDEX = {
    "recording": str, "world_size": int, "steps": int, "seed": int, "drops": list, "seams": list,
}  # fmt: skip
_SEAM = {
    "step": int, "call": int, "phase": str, "operation": str, "tensor": str, "dtype": str,
}  # fmt: skip


def _index(path: Path) -> dict[str, Any]:
    """Return what a rank has written of its tensors.

    Raises:
        ValueError: it is not whole, or something else.
    """
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}); record again with mimokit.watch."
        ) from None
    if not _has(about, _INDEX) or not all(
        _has(seam, _SEAM) and seam["phase"] in PHASES for seam in about["seams"]
    ):
        raise ValueError(
            f"{path} was not written by this version of mimokit.watch: it should have "
            f"{', '.join(_INDEX)}, and of each seam {', '.join(_SEAM)}; record again."
        )
    return dict(about)


def _has(about: Any, kinds: dict[str, type]) -> bool:
    """Whether a value is a mapping with such entries."""
    return isinstance(about, dict) and all(
        isinstance(about.get(name), kind) for name, kind in kinds.items()
    )


def _tensors(path: Path) -> tuple[dict[str, Array], str]:
    """Return the tensors of a rank by their names, and the recording that they are of.

    Raises:
        ValueError: the file cannot be read.
    """
    try:
        with safe_open(path, "numpy") as file:
            names = file.keys()
            stored = {name: file.get_tensor(name) for name in names}
            return stored, (file.metadata() or {}).get("recording", "")
    except Exception as error:
        raise ValueError(
            f"{path} cannot be read ({error}); record again with mimokit.watch."
        ) from None


def _order(key: Key, parts: Sequence[RecordedPart]) -> tuple[int, ...]:
    step, call, phase, _ = key
    place = PHASES.index(phase)
    when = -1 if phase == BEFORE else call if phase in OF_CALLS else 1 << 30
    return step, when, place, int(parts[0].about["tensor"])
