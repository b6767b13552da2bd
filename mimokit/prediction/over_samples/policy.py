"""What is done with the samples of a global batch before ranks compute them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mimokit.config.runtime import AS_DRAWN, BALANCED, SampleOrder

Packing = Literal["padded", "row"] | int
"""Samples padded to the sequence; those of a micro-batch in a row without padding, as
`data.pack_sequences_in_batch` has them; or rows of at most so many tokens, filled in the order of
the samples, each of which is a micro-batch."""
PREDICTED_ONLY = (
    "Rows packed to a length are predicted only: a run packs the samples of each micro-batch "
    "(data.pack_sequences_in_batch)."
)


@dataclass(frozen=True)
class Policy:
    """How samples come to ranks.

    Attributes:
        order: which replica takes which sample of a micro-batch, as `runtime.sample_order`.
        shared_frames: replicas of a vision encoder share the frames of a micro-batch, as
            `runtime.patch_type: [vit_frame_parallel]`.
        text_only: samples that have nothing but text stay in the mix.
    """

    order: SampleOrder = AS_DRAWN
    shared_frames: bool = False
    packing: Packing = "padded"
    text_only: bool = True

    def __str__(self) -> str:
        words = ["balanced order" if self.order == BALANCED else "as drawn"]
        if self.shared_frames:
            words.append("balanced frames")
        if self.packing != "padded":
            words.append("packed" if self.packing == "row" else f"packed to {self.packing:,}")
        if not self.text_only:
            words.append("without text-only samples")
        return ", ".join(words[1:] if len(words) > 1 and self.order == AS_DRAWN else words)


DRAWN = Policy()
POLICIES = (
    DRAWN,
    Policy(order=BALANCED),
    Policy(shared_frames=True),
    Policy(packing="row"),
)
