"""Rotary positions: angles of tokens, their scaling, and the rotation of query and key."""

from __future__ import annotations

import math

import torch

from mimokit.architecture.functions import NetworkFunctions, RotaryScaling


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


def angles(positions: torch.Tensor, each: torch.Tensor) -> torch.Tensor:
    """Return the angles of tokens: [batch, tokens, width of a head], both halves alike.

    Args:
        positions: [batch, tokens].
        each: radians per position, as `frequencies` returns them.
    """
    half = positions[..., None].float() * each
    return torch.cat((half, half), dim=-1)


def rotated(heads: torch.Tensor, turned: torch.Tensor) -> torch.Tensor:
    """Return query or key with positions.

    Args:
        heads: [batch, tokens, heads, width].
        turned: as `angles` returns it.
    """
    one, other = heads.chunk(2, dim=-1)
    cos, sin = (part.to(heads.dtype)[:, :, None] for part in (turned.cos(), turned.sin()))
    return heads * cos + torch.cat((-other, one), dim=-1) * sin
