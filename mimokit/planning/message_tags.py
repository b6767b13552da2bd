"""The tags of messages between one pair of ranks.

A tag has 31 bits, the most that torch accepts. From the highest:

    1 direction | 7 edge | 10 micro-batch | 8 slot | 5 split

direction: 0 activations, 1 gradients. edge: of the stage graph, in which each of several stages of
a rank has separate edges. micro-batch: within the step. slot: the number of a tensor among all
that reach a stage in a micro-batch (`mimokit.planning.schedule.slots`); a message's header has its
first slot. split: the number of a message among those of one pair over an edge in a micro-batch. A
value that does not fit is rejected, never hashed: two messages with the same tag would be confused.
(NCCL ignores tags; the check of the schedule has ensured that both ends of a pair have the same
order.) The widths are in `mimokit.config.rules.message_tags`, so that too many micro-batches or
edges are rejected before an engine starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mimokit.config.rules.message_tags import FIELD_BITS
from mimokit.units import counted

__all__ = ["FIELD_BITS", "Tag"]


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
