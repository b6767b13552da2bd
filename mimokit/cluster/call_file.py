"""A call whose arrays ranks of this machine map from one file, instead of a copy for each rank."""

from __future__ import annotations

import contextlib
import mmap
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, Any, TypeAlias

LARGE = 2**20
"""Bytes of arrays that are worth a file."""


@dataclass(frozen=True)
class PackedCall:
    """A function, its arguments and keyword arguments, by cloudpickle.

    Attributes:
        file: with the arrays of the arguments, one after another; "": `pickled` has them.
        ends: of each array in the file, in bytes, the first one 0.
    """

    pickled: bytes
    file: str = ""
    ends: tuple[int, ...] = ()

    def unpacked(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Return them; a change of an array changes no file."""
        arrays: list[memoryview] = []
        if self.file:
            with open(self.file, "rb") as file:
                whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
            arrays = [whole[begin:end] for begin, end in pairwise(self.ends)]
        function, args, kwargs = pickle.loads(self.pickled, buffers=arrays)
        return function, args, kwargs


Take: TypeAlias = Callable[[pickle.PickleBuffer], object]
"""Is given each array of a call, which is then pickled without."""


def in_file(pack: Callable[[Take], bytes], folder: Path) -> tuple[PackedCall, IO[bytes]] | None:
    """Return a call and its file, which is gone once it is closed.

    None where the arrays are small, or the folder has no room for them.
    """
    buffers: list[pickle.PickleBuffer] = []
    pickled = pack(buffers.append)
    arrays = [array.raw() for array in buffers]
    ends = tuple(accumulate((array.nbytes for array in arrays), initial=0))
    if ends[-1] < LARGE:
        return None
    with contextlib.suppress(OSError):
        file = tempfile.NamedTemporaryFile(dir=folder, prefix="call-")  # noqa: SIM115
        file.writelines(arrays)
        file.flush()
        return PackedCall(pickled, file.name, ends), file
    return None
