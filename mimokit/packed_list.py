"""A list of bounded memory: older items are compressed pickles, most of them in a file.

The file has no name and is gone with the list, or with the process, however that ends.
"""

import contextlib
import os
import pickle
import tempfile
import weakref
import zlib
from collections.abc import Iterator
from typing import IO, Generic, TypeVar

Item = TypeVar("Item")

TOGETHER = 256
"""Items that are compressed, and unpacked, together."""
BYTES_IN_MEMORY = 2**21
"""Of packed items; what comes later goes to the file, or stays where that cannot be written."""


class PackedList(Generic[Item]):
    """Items in the order in which they were appended; what is unpacked is a copy."""

    def __init__(self) -> None:
        self._packed: list[bytes | tuple[int, int]] = []
        self._last: list[Item] = []
        self._held = 0
        self._file: IO[bytes] | None = None
        self._written = 0

    def __len__(self) -> int:
        return TOGETHER * len(self._packed) + len(self._last)

    def __iter__(self) -> Iterator[Item]:
        return self.from_place(0)

    def from_place(self, place: int) -> Iterator[Item]:
        """Yield the items from a place on."""
        while items := self.some_from(place):
            yield from items
            place += len(items)

    def append(self, item: Item) -> None:
        """Add an item."""
        self._last.append(item)
        if len(self._last) == TOGETHER:
            self._packed.append(self._kept(zlib.compress(pickle.dumps(self._last), 1)))
            self._last = []

    def _kept(self, packed: bytes) -> bytes | tuple[int, int]:
        """Return the packed items, or their place in the file and their length."""
        if self._held + len(packed) > BYTES_IN_MEMORY:
            with contextlib.suppress(OSError):
                return self._in_file(packed)
        self._held += len(packed)
        return packed

    def _in_file(self, packed: bytes) -> tuple[int, int]:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
            weakref.finalize(self, self._file.close)
        if os.pwrite(self._file.fileno(), packed, self._written) < len(packed):
            raise OSError("the disk is full")
        place = self._written, len(packed)
        self._written += len(packed)
        return place

    def _unpacked(self, kept: bytes | tuple[int, int]) -> list[Item]:
        if isinstance(kept, tuple):
            assert self._file is not None
            kept = os.pread(self._file.fileno(), kept[1], kept[0])
        items: list[Item] = pickle.loads(zlib.decompress(kept))
        return items

    def some_from(self, place: int) -> list[Item]:
        """Return items from a place on, those that are packed together; none beyond the last."""
        number, first = divmod(place, TOGETHER)
        if number == len(self._packed):
            return self._last[first:]
        if number > len(self._packed):
            return []
        return self._unpacked(self._packed[number])[first:]
