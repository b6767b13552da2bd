"""Bytes per rank: weights, gradients, optimizer, activations, logits, buffers."""

from mimokit.architecture.rank_parameters import RankParameters
from mimokit.prediction.memory.stage import (
    MemoryLine,
    memory_lines,
    micro_batches_in_flight,
    micro_batches_through,
    stage_memory,
    total_bytes,
)
from mimokit.prediction.memory.states import Storage, state_bytes

__all__ = [
    "MemoryLine",
    "RankParameters",
    "Storage",
    "memory_lines",
    "micro_batches_in_flight",
    "micro_batches_through",
    "stage_memory",
    "state_bytes",
    "total_bytes",
]
