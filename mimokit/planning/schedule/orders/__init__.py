"""The orders in which ranks compute: one pure function each.

An order is a function of (graph, set of ranks, micro-batches) that returns the steps of one entry
of `StageGraph.workers`, in order: (kind, stage, micro-batch). Every forward and every backward of
the worker's stages is in it once. `Schedule` leaves out what there is nothing to do for, and adds
the messages between ranks.
"""

from mimokit.planning.schedule.orders.pipelines import (
    gpipe,
    interleaved,
    num_warmup_microbatches,
    one_forward_one_backward,
)
from mimokit.planning.schedule.orders.shared_ranks import shared_ranks

__all__ = [
    "gpipe",
    "interleaved",
    "num_warmup_microbatches",
    "one_forward_one_backward",
    "shared_ranks",
]
