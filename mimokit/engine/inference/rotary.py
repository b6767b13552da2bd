"""Rotary positions: angles of tokens, their scaling, and the rotation of query and key."""

from __future__ import annotations

import math

import torch

from mimokit.architecture.huggingface.functions import NetworkFunctions, RotaryScaling

Turns = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, as `turns` returns them."""


def frequencies(width: int, functions: NetworkFunctions) -> torch.Tensor:
    """Return the radians per position of the pairs of a head: [width / 2], fp32."""
    exponents = torch.arange(0, width, 2, dtype=torch.int64).float() / width
    plain = 1.0 / functions.rotary_base**exponents
    scaling = functions.rotary_scaling
    if scaling is None:
        return plain
    return plain / scaling.factor if scaling.kind == "linear" else _llama3(plain, scaling)


def _llama3(plain: torch.Tensor, scaling: RotaryScaling) -> torch.Tensor:
    """Divide the frequencies of long wavelengths, keep those of short ones, blend between."""
    turns = scaling.original_positions * plain / (2 * math.pi)  # over the original length
    kept = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
    return plain * (kept + (1 - kept) / scaling.factor)


def turns(positions: torch.Tensor, each: torch.Tensor, dtype: torch.dtype) -> Turns:
    """Return the cosines and sines of tokens' angles, which all layers have in common.

    Args:
        positions: [batch, tokens].
        each: radians per position, as `frequencies` returns them.

    Returns:
        Twice [batch, tokens, 1, 1, width of a head], both halves alike.
    """
    half = positions[..., None, None, None].float() * each
    angles = torch.cat((half, half), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotated(heads: torch.Tensor, turned: Turns) -> torch.Tensor:
    """Return queries and keys with positions.

    Args:
        heads: [batch, tokens, groups, heads of a group, width].
        turned: as `turns` returns it.
    """
    one, other = heads.chunk(2, dim=-1)
    cos, sin = turned
    return heads * cos + torch.cat((-other, one), dim=-1) * sin
