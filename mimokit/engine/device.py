"""Where the tensors of this rank live, and how long its groups wait."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def rank_device() -> torch.device:
    """Return the CUDA device of this rank (ranks share devices round robin), else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device(
        "cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    )
    torch.cuda.set_device(device)
    return device


def group_timeout() -> timedelta:
    """Return how long the world waits for a rank, for the groups within it to wait as long.

    A group made without a timeout waits torch's default, half an hour, whatever the world's is.
    """
    backend = dist.group.WORLD._get_backend(rank_device())  # type: ignore[union-attr]
    timeout: timedelta = backend.options._timeout
    return timeout
