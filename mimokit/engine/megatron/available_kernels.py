"""The fused kernels that the installed Megatron offers: on CUDA devices, and nowhere else.

torch's norms are one kernel each as they are. Transformer Engine's linear layers are not used: they
hold weights under other names, and multiply where orders of stages put products off.
"""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from shutil import which
from typing import Any

from megatron.core.extensions import transformer_engine

from mimokit.engine.megatron.cpu import CPU_ONLY

_SOFTMAX = "scaled_upper_triang_masked_softmax_cuda"


@dataclass(frozen=True)
class FusedKernels:
    """What layers compute by, in place of one kernel of torch for each operation.

    Attributes:
        flash: torch's attention in half precision keeps no scores.
        elementwise: one kernel adds a bias and activates, one adds a bias and a residual.
        softmax: one scales, masks and normalizes causal scores in half precision (Apex).
        norm: the class of Transformer Engine's, or None.
        attention: likewise.
    """

    flash: bool = False
    elementwise: bool = False
    softmax: bool = False
    norm: Any = None
    attention: Any = None


def fused_kernels() -> FusedKernels:
    """Return those of this process, whether it computes a layout or is the one process."""
    if CPU_ONLY:
        return FusedKernels()
    installed = transformer_engine if transformer_engine.HAVE_TE else None
    return FusedKernels(
        flash=True,
        elementwise=_compiles(),
        softmax=find_spec(_SOFTMAX) is not None,
        norm=getattr(installed, "TENorm", None),
        attention=getattr(installed, "TEDotProductAttention", None),
    )


def _compiles() -> bool:
    """Whether torch compiles kernels here: by Triton, which looks for these compilers of C."""
    stated = os.environ.get("CC")
    compiler = which(stated) if stated else which("gcc") or which("clang")
    return find_spec("triton") is not None and compiler is not None
