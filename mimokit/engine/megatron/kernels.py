"""Kernels of Transformer Engine, where it is installed."""

from __future__ import annotations

from typing import Any

from mimokit.engine.megatron.cpu import CPU_ONLY


def transformer_engine_attention() -> Any:
    """Return the class of Transformer Engine's attention; None without it or without a GPU."""
    if CPU_ONLY:
        return None
    from megatron.core.extensions import transformer_engine

    return transformer_engine.TEDotProductAttention if transformer_engine.HAVE_TE else None
