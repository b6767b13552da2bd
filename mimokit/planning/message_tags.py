"""The tags of messages between one pair of ranks.

A tag has 31 bits, the most that torch accepts. From the highest:

    1 direction | 7 edge | 10 micro-batch | 8 slot | 5 split

direction: 0 activations, 1 gradients. edge: of the stage graph, in which each of several stages of
a rank has separate edges. micro-batch: within the step. slot: the number of a tensor among all
that reach a stage in a micro-batch (`mimokit.planning.schedule.slots`); a message's header has its
first slot. split: the number of a message among those of one pair over an edge in a micro-batch. A
value that does not fit is rejected, never hashed: two messages with the same tag would be confused.
(NCCL ignores tags; the check of the schedule has ensured that both ends of a pair have the same
order.) Too many micro-batches, edges or slots are rejected before an engine starts, see
`mimokit.planning.unplannable`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mimokit.units import counted

FIELD_BITS = (("direction", 1), ("edge", 7), ("microbatch", 10), ("slot", 8), ("split", 5))
"""Field of a tag -> its bits, from the highest."""

ROOM: Mapping[str, int] = {name: 1 << bits for name, bits in FIELD_BITS}
"""Field of a tag -> the values that it holds."""

HEADER_SLOTS = 1
_ROWS_SLOTS = 2
"""Rows, and rows per sample, which come with the header."""
_GRID_SLOTS = 2
"""Items per sample, and the grid of each."""


def slots_between_modules(with_grids: bool) -> int:
    """Return the slots of the tensors that one module sends another in a micro-batch.

    Args:
        with_grids: of its items, see `ModelSection.sends_grids`.
    """
    return HEADER_SLOTS + _ROWS_SLOTS + _GRID_SLOTS * with_grids


@dataclass(frozen=True, slots=True)
class Tag:
    """The fields of a tag; see the module's docstring."""

    direction: Literal[0, 1]
    edge: int
    microbatch: int
    slot: int = 0
    split: int = 0

    def encode(self) -> int:
        """Return the tag as torch takes it; raise `ValueError` if a field does not fit its bits."""
        encoded = 0
        for name, bits in FIELD_BITS:
            value = getattr(self, name)
            if not 0 <= value < 1 << bits:
                raise ValueError(
                    f"A message tag holds {counted(1 << bits, 'value')} of {name}, 0 to "
                    f"{(1 << bits) - 1}; {value} does not fit."
                )
            encoded = encoded << bits | value
        return encoded

    @classmethod
    def decode(cls, encoded: int) -> Tag:
        """Return the fields of a tag."""
        fields = {}
        for name, bits in reversed(FIELD_BITS):
            fields[name] = encoded & ((1 << bits) - 1)
            encoded >>= bits
        return cls(**fields)  # type: ignore[arg-type]
