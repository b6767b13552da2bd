"""Bytes per rank of a checkpoint's language model, with the real shapes of its shards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mimokit.architecture.modules import LanguageModel
from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.architecture.transformer import Transformer
from mimokit.planning.weights import WeightPlanner
from mimokit.planning.weights.checkpoint import Checkpoint
from mimokit.planning.weights.headers import FLOATING, refused
from mimokit.planning.weights.running import check_language
from mimokit.planning.weights.types import DTYPE_BYTES, RankWeights
from mimokit.prediction.memory.stage import stage_memory
from mimokit.prediction.memory.states import GRADIENT, OPTIMIZER, WEIGHT

PARTS = ("weights", "gradients", "optimizer", "activations", "kv_cache")


@dataclass(frozen=True)
class RankMemory:
    """Memory of the fullest rank at one size.

    Attributes:
        tensor_parallel: ranks that share every layer.
        parts: part -> bytes; 0 for what there is not.
    """

    tensor_parallel: int
    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class CheckpointMemory:
    """Memory of a checkpoint's model.

    Attributes:
        model_type: of the checkpoint.
        inference: without gradients and optimizer, with a cache.
        batch: sequences of a rank at once.
        seq_length: tokens of each.
        ranks: by ascending size.
    """

    model_type: str
    inference: bool
    batch: int
    seq_length: int
    ranks: tuple[RankMemory, ...]

    def saved(self, number: int) -> float | None:
        """Return the share that a size saves of the bytes of the one before; None for the first."""
        if not number:
            return None
        return 1 - self.ranks[number].total / self.ranks[number - 1].total

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        fields = ("model_type", "inference", "batch", "seq_length")
        return {
            **{name: getattr(self, name) for name in fields},
            "sizes": {
                str(one.tensor_parallel): {
                    **one.parts, "total": one.total, "saved": self.saved(number)
                }
                for number, one in enumerate(self.ranks)
            },
        }  # fmt: skip


def checkpoint_memory(
    checkpoint: Checkpoint,
    sizes: Sequence[int],
    *,
    inference: bool = False,
    batch: int = 1,
    seq_length: int = 4096,
    dtype: str | None = None,
) -> CheckpointMemory:
    """Return the bytes of the fullest rank at each tensor parallel size.

    Training is that of `mimokit.prediction.memory`: 16-bit weights, fp32 gradients, Adam on one
    replica, no recompute. For inference, weights and cache have the dtype of loading, and the
    activations are those of one layer for the whole prompt.

    Args:
        checkpoint: its config and headers.
        sizes: tensor parallel sizes.
        inference: generate, do not train.
        batch: sequences of a rank at once.
        seq_length: tokens of each, for a cache those that will be generated included.
        dtype: torch's name of the dtype of loading, for inference; None: as in the files.

    Raises:
        ConfigError: a size cannot cut the model, or a number is below 1.
    """
    for name, value in (("batch", batch), ("seq_length", seq_length)):
        if value < 1:
            raise refused("Options", name, value, f"{name} is {value}; it must be at least 1")
    if not sizes:
        raise refused("Options", "tp", None, "no tensor parallel size is given; write 1,2,4,8")
    check_language(checkpoint)
    found = []
    for size in sorted(set(sizes)):
        planner = WeightPlanner(checkpoint, size, 1, dtype)
        if inference:
            parts = _inference(planner, size, batch, seq_length, dtype)
        else:
            parts = _training(planner, size, batch, seq_length)
        found.append(RankMemory(size, {name: float(parts.get(name, 0)) for name in PARTS}))
    kind = str(checkpoint.config.get("model_type"))
    return CheckpointMemory(kind, inference, batch, seq_length, tuple(found))


def _training(planner: WeightPlanner, size: int, batch: int, seq: int) -> dict[str, float]:
    parameters = max(_parameters(planner.rank(rank)) for rank in range(size))
    model = planner.family.model
    assert isinstance(model, LanguageModel)
    stage = stage_memory(model, ParallelSizes(tensor=size, micro_batch=batch), seq, 1, 0)
    outside = ("activations", "logits", "buffers")
    return {
        "weights": WEIGHT * parameters,
        "gradients": GRADIENT * parameters,
        "optimizer": OPTIMIZER * parameters,
        "activations": sum(float(np.asarray(stage[name])) for name in outside if name in stage),
    }


def _inference(
    planner: WeightPlanner, size: int, batch: int, seq: int, dtype: str | None
) -> dict[str, float]:
    ranks = [planner.rank(rank) for rank in range(size)]
    stored = planner.checkpoint.tensors[next(iter(planner.family.found.tensors))].dtype
    entry = DTYPE_BYTES[dtype or FLOATING[stored]]
    net = planner.family.stacked
    vocab = (ranks[0].vocab or (0, 0))[1]
    layer = _layer_entries(net, size) * batch * seq
    return {
        "weights": max(one.bytes for one in ranks),
        "activations": entry * layer + 4 * batch * vocab,
        "kv_cache": cache_bytes(net, size, batch, seq, entry),
    }


def cache_bytes(net: Transformer, tensor_parallel: int, batch: int, seq: int, entry: int) -> int:
    """Return the bytes of a rank's key and value cache.

    Below one group a rank they do not shrink further: every rank holds at least one.

    Args:
        net: the layers.
        tensor_parallel: ranks that share every layer.
        batch: sequences.
        seq: tokens of each.
        entry: bytes of a number.
    """
    groups = max(net.kv_heads // tensor_parallel, 1)
    return 2 * net.layers * groups * net.head_dim * seq * batch * entry


def _layer_entries(net: Transformer, size: int) -> float:
    """Return the numbers per token that a layer holds at once: residual, input, the widest part."""
    attention = (2 * net.heads + 2 * net.kv_heads) * net.head_dim
    feed_forward = (3 if net.gated else 2) * net.ffn
    return 2 * net.hidden + max(attention, feed_forward) / size


def _parameters(rank: RankWeights) -> int:
    return sum(math.prod(one.shape) for one in rank.parameters.values())
