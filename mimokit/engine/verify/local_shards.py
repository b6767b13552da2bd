"""The part of a whole tensor of the oracle that a rank holds."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist


def shard_shape(
    whole: tuple[int, ...], parameter: torch.nn.Parameter, group: dist.ProcessGroup
) -> tuple[int, ...]:
    """Return the shape of this rank's shard of a whole tensor, which may be padded."""
    if not getattr(parameter, "tensor_model_parallel", False):
        return whole
    axis: int = parameter.partition_dim  # type: ignore[attr-defined]
    share = max(whole[axis] // group.size(), parameter.shape[axis])
    return (*whole[:axis], share, *whole[axis + 1 :])


def local_shard(
    whole: np.ndarray, parameter: torch.nn.Parameter, group: dist.ProcessGroup
) -> np.ndarray:
    """Return this rank's shard of a whole tensor, which grows by zeros where it is padded.

    A stride of 2 says that the tensor has two parts, of each of which every rank has a share.
    """
    if not getattr(parameter, "tensor_model_parallel", False):
        return whole
    axis: int = parameter.partition_dim  # type: ignore[attr-defined]
    parts: int = parameter.partition_stride  # type: ignore[attr-defined]
    missing = parameter.shape[axis] * group.size() - whole.shape[axis]
    if missing > 0:
        widths = [(0, missing if axis == number else 0) for number in range(whole.ndim)]
        whole = np.pad(whole, widths)
    shares = (np.split(part, group.size(), axis) for part in np.split(whole, parts, axis))
    return np.concatenate([share[group.rank()] for share in shares], axis)
