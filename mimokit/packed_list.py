"""A list that takes a tenth of the memory of its items: older ones are compressed pickles."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")

TOGETHER = 256
"""Items that are compressed, and unpacked, together."""


class PackedList(Generic[Item]):
    """Items in the order in which they were appended; what is unpacked is a copy."""

    def __init__(self) -> None:
        self._packed: list[bytes] = []
        self._last: list[Item] = []

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
            self._packed.append(zlib.compress(pickle.dumps(self._last), 1))
            self._last = []

    def some_from(self, place: int) -> list[Item]:
        """Return items from a place on, those that are packed together; none beyond the last."""
        number, first = divmod(place, TOGETHER)
        if number == len(self._packed):
            return self._last[first:]
        if number > len(self._packed):
            return []
        items: list[Item] = pickle.loads(zlib.decompress(self._packed[number]))
        return items[first:]
