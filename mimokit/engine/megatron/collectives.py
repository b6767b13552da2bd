"""The collectives of torch that Megatron calls, by the names that torch has for them."""

import torch.distributed as dist
from megatron.core.distributed import param_and_grad_buffer
from megatron.core.tensor_parallel import layers, mappings, utils

_NEW_NAMES = {
    "dist_all_gather_func": "all_gather_single",
    "dist_reduce_scatter_func": "reduce_scatter_single",
}
"""Name in Megatron's modules -> name of the function from torch 2.13 on.

By their old names every rank prints a warning of each.
"""


def take_new_names() -> None:
    """Let Megatron's modules call the new functions where torch has them."""
    for module in (layers, mappings, utils, param_and_grad_buffer):
        for name, new in _NEW_NAMES.items():
            if hasattr(module, name) and hasattr(dist, new):
                setattr(module, name, getattr(dist, new))
