"""Orders of work: when a stage computes which micro-batch, forward and backward.

An order is a function of (position of the stage, stages on the longest path, micro-batches) that
returns every forward and every backward of the stage once. Orders that cut a stage into chunks
(interleaved) or a backward into two (zero-bubble) fit the same type with more kinds of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

ComputeKind = Literal["forward", "backward"]
Step = tuple[ComputeKind, int]
"""What to compute, and for which micro-batch (0-based)."""

Order = Callable[[int, int, int], Sequence[Step]]


def num_warmup_microbatches(position: int, total_stages: int, num_microbatches: int) -> int:
    """Return how many forwards a stage does before it alternates: one per stage that follows.

    `total_stages - position - 1`, at most all micro-batches (Narayanan et al. 2021,
    arXiv 2104.04473, section 2.2; over a graph the position is counted on the longest path, as
    megatron-core does).
    """
    return min(total_stages - position - 1, num_microbatches)


def gpipe(position: int, total_stages: int, num_microbatches: int) -> Sequence[Step]:
    """Return all forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965)."""
    microbatches = range(num_microbatches)
    return [("forward", m) for m in microbatches] + [("backward", m) for m in microbatches]


def one_forward_one_backward(
    position: int, total_stages: int, num_microbatches: int
) -> Sequence[Step]:
    """Return 1F1B: warm-up forwards, then forward and backward in turn, then the backwards left.

    At most warm-up + 1 micro-batches are held at a time.
    """
    warmup = num_warmup_microbatches(position, total_stages, num_microbatches)
    steps: list[Step] = [("forward", m) for m in range(warmup)]
    for m in range(num_microbatches - warmup):
        steps.append(("forward", warmup + m))
        steps.append(("backward", m))
    steps += [("backward", m) for m in range(num_microbatches - warmup, num_microbatches)]
    return steps
