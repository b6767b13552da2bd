"""Where the tensors of this rank live."""

from __future__ import annotations

import os

import torch


def rank_device() -> torch.device:
    """Return the CUDA device of this rank (ranks share devices round robin), else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device(
        "cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    )
    torch.cuda.set_device(device)
    return device
