"""Collectives of `torch.distributed` that got a new name in torch 2.13, also where torch is older.

A separate file: rooms use it that may import neither each other nor Megatron.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def collective(name: str, older: str) -> Callable[..., Any]:
    """Return a function of `torch.distributed` by its name, or by the one it had before.

    Raises, when the result is called:
        RuntimeError: this torch has neither.
    """
    call: Callable[..., Any] | None = getattr(dist, name, None) or getattr(dist, older, None)
    if call is not None:
        return call

    def missing(*_: object, **__: object) -> None:
        raise RuntimeError(
            f"torch {torch.__version__} has neither torch.distributed.{name} nor {older}, "
            "which mimokit calls here; install torch 2.13 or newer."
        )

    return missing


all_gather_single = collective("all_gather_single", "all_gather_into_tensor")
reduce_scatter_single = collective("reduce_scatter_single", "reduce_scatter_tensor")
