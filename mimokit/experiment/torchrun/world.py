"""The world that torchrun describes, for loops that need nothing else of this package."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def world_from_environment() -> Iterator[int]:
    """Form the world that torchrun describes: nccl if each rank has a GPU, else gloo."""
    import torch
    import torch.distributed as dist

    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    own_device = torch.cuda.is_available() and torch.cuda.device_count() >= local
    dist.init_process_group("nccl" if own_device else "gloo", timeout=datetime.timedelta(minutes=5))
    try:
        yield dist.get_rank()
    finally:
        dist.destroy_process_group()
