"""Which columns of a tensor a rank has, by the weight that makes or takes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from mimokit.engine.parallel.marks import shard_of

Columns = NDArray[np.int64] | None
"""Place of every column of a rank in the whole tensor; None: the rank has all columns."""


def columns_of(weight: torch.nn.Parameter, dimension: int) -> Columns:
    """Return the share of a rank along a dimension of a weight.

    Args:
        dimension: 0: of the output of its matrix; 1: of the input.
    """
    shard = shard_of(weight)
    if shard.cut.dimension != dimension:
        return None
    length = shard.cut.whole[dimension]
    alone = replace(shard.cut, whole=(length,), dimension=0)
    return alone.at(shard.place).of(np.arange(length), padding=-1).astype(np.int64)
