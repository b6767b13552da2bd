"""Rotary positions (Su et al. 2021, arXiv 2104.09864), and how they are stretched.

Names and arithmetic of the stretching are those of transformers (`modeling_rope_utils`).
"""

import math
from dataclasses import dataclass
from typing import Self

import torch

from mimokit.config import ModuleArchitecture, RopeScaling


@dataclass(frozen=True)
class RotaryPositions:
    """How the pairs of a head turn with the position of a token.

    Attributes:
        scaling: how they are stretched; None: not at all.
        length: tokens of the longest sequence, which decides how dynamic and longrope stretch.
    """

    base: float
    scaling: RopeScaling | None = None
    length: int = 0

    @classmethod
    def of(cls, network: ModuleArchitecture) -> Self:
        """Return how the heads of a network turn, if its positions are rotary."""
        return cls(network.rope_theta, network.rope_scaling, network.seq_length)

    @property
    def growth(self) -> float:
        """By how much queries and keys are multiplied."""
        scaling = self.scaling
        if scaling is None or scaling.factor == 1:
            return 1.0
        logarithm = math.log(scaling.factor)
        if scaling.rope_type == "longrope":
            original = math.log(scaling.original_max_position_embeddings)
            return math.sqrt(1 + logarithm / original)
        if scaling.rope_type != "yarn":
            return 1.0
        if scaling.mscale is None or scaling.mscale_all_dim is None:
            return 0.1 * logarithm + 1
        whole, divided = (0.1 * m * logarithm + 1 for m in (scaling.mscale, scaling.mscale_all_dim))
        return whole / divided

    def frequencies(self, width: int) -> torch.Tensor:
        """Return the radians per position of the pairs of a head: [width / 2], fp32."""
        exponents = torch.arange(0, width, 2, dtype=torch.int64).float() / width
        scaling, base = self.scaling, self.base
        if scaling is not None and scaling.rope_type == "dynamic":
            longer = max(1.0, self.length / scaling.original_max_position_embeddings)
            base *= (scaling.factor * longer - (scaling.factor - 1)) ** (width / (width - 2))
        plain = 1.0 / base**exponents
        if scaling is None:
            return plain
        match scaling.rope_type:
            case "linear":
                return plain / scaling.factor
            case "llama3":
                return _llama3(plain, scaling)
            case "yarn":
                return _yarn(plain, base, scaling)
            case "longrope":
                is_long = self.length > scaling.original_max_position_embeddings
                factors = scaling.long_factor if is_long else scaling.short_factor
                return plain / torch.tensor(factors)
        return plain


def _yarn(plain: torch.Tensor, base: float, scaling: RopeScaling) -> torch.Tensor:
    pairs = len(plain)

    def pair(turns: float) -> float:
        longest = scaling.original_max_position_embeddings / (turns * 2 * math.pi)
        return pairs * math.log(longest) / math.log(base)

    first = max(0, math.floor(pair(scaling.beta_fast)))
    last = min(math.ceil(pair(scaling.beta_slow)), 2 * pairs - 1)
    width = last - first if last != first else 0.001
    divided = ((torch.arange(pairs, dtype=torch.float32) - first) / width).clamp(0, 1)
    return plain * (1 - divided) + plain / scaling.factor * divided


def _llama3(plain: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * (kept + (1 - kept) / scaling.factor)
