"""The activations between the matrices of a feed-forward layer."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F

ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
}
"""Name in a config -> what it computes."""
