"""The formula of each number of a module's memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mimokit.architecture.modules import LanguageModel
from mimokit.architecture.parallel_sizes import RECOMPUTE_NAMES, ParallelSizes
from mimokit.architecture.parameters_on_rank import (
    Module,
    RankParameters,
    layers_of,
    rank_parameters,
)
from mimokit.prediction.memory.stage import LOGIT, micro_batches_in_flight, stage_memory
from mimokit.prediction.memory.states import IN_HALF, WEIGHT, Storage

SOURCES: Mapping[str, str] = {
    "weights": "Megatron-LM theoretical_memory_usage.py: bf16 or fp16; matrices of 8-bit training "
    "in 8 bits (Megatron-Bridge fp8_param_gather, disable_parameter_transpose_cache)",
    "gradients": "Megatron-LM theoretical_memory_usage.py; 2 B with grad_reduce_in_fp32=False",
    "optimizer": "Megatron-LM theoretical_memory_usage.py: fp32 weight and both moments of Adam "
    "(12 B) or what another optimizer keeps, cut over data x context ranks and repeated per "
    "optimizer instance (arXiv 2605.27678)",
    "activations": "Korthikanti et al., arXiv 2205.05198, table 2; in flight as 1F1B says",
    "logits": "bf16 logits and fp32 of the cross entropy",
    "buffers": "one layer rebuilt by full recompute, one input gathered by sequence parallelism",
    "strategy": "fp32 outer weights, state of the outer optimizer and residuals of the strategy "
    "between replicas, not cut over data parallel ranks",
}


@dataclass(frozen=True)
class MemoryLine:
    """One number of a module's memory.

    Attributes:
        part: weights, gradients, optimizer, activations, logits, buffers or strategy.
        factors: name of each factor -> its value. Their product is `bytes`.
    """

    part: str
    bytes: float
    factors: Mapping[str, float]
    source: str

    @property
    def formula(self) -> str:
        """The formula in words."""
        return " × ".join(self.factors)

    @property
    def numbers(self) -> str:
        """The formula with numbers."""
        return " × ".join(_short(value) for value in self.factors.values())

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        shown = {"formula": self.formula, "numbers": self.numbers}
        return {**vars(self), "factors": dict(self.factors), **shown}


def memory_lines(
    module: Module,
    sizes: ParallelSizes,
    seq: float,
    micro_batches: float,
    stage: int,
    *,
    samples: float | None = None,
    frozen: bool = False,
    passes_gradient: bool = False,
    held_for: float | None = None,
    storage: Storage = IN_HALF,
) -> tuple[MemoryLine, ...]:
    """Return each number of `stage_memory` with its formula. The arguments are the same."""
    parts = stage_memory(
        module, sizes, seq, micro_batches, stage,
        samples=samples, frozen=frozen, passes_gradient=passes_gradient, held_for=held_for,
        storage=storage,
    )  # fmt: skip
    found = {name: float(np.asarray(value)) for name, value in parts.items()}
    held = rank_parameters(module, sizes, stage)
    parameters = float(np.asarray(held.total))
    alive = micro_batches_in_flight(sizes, micro_batches, stage) if held_for is None else held_for
    layers = float(np.asarray(layers_of(module, sizes, stage).total))
    tokens = float((sizes.micro_batch if samples is None else samples) * seq / sizes.context)
    mode = RECOMPUTE_NAMES[int(sizes.recompute)]
    factors = {
        "weights": _per_parameter(found["weights"], _weight(held, storage), parameters),
        "gradients": _per_parameter(found["gradients"], storage.gradient, parameters),
        "optimizer": _per_parameter(found["optimizer"], storage.optimizer, parameters),
        "activations": _completed(
            found["activations"],
            {"layers": layers, "micro-batches in flight": float(alive)},
            f"bytes per layer and micro-batch (recompute {mode})",
        ),
        "logits": _logits(found["logits"], module, sizes, tokens),
        "buffers": {"bytes": found["buffers"]},
    }
    if "strategy" in found:
        factors["strategy"] = _per_parameter(found["strategy"], storage.strategy, parameters)
    return tuple(
        MemoryLine(part, found[part], factors[part], SOURCES[part]) for part in found if found[part]
    )


def _per_parameter(total: float, each: float, parameters: float) -> dict[str, float]:
    """Return factors. Sharding over replicas adds a factor below 1."""
    factors = {"bytes": each, "parameters on the rank": parameters}
    share = total / math.prod(factors.values()) if parameters else 0.0
    return factors if math.isclose(share, 1) else {**factors, "share after sharding": share}


def _weight(held: RankParameters, storage: Storage) -> float:
    """Return the bytes of a weight, on average if some are stored in 8 bits."""
    share = float(np.asarray(held.matrices / held.total))
    return WEIGHT - (WEIGHT - storage.matrix_weight) * share


def _completed(total: float, factors: dict[str, float], rest: str) -> dict[str, float]:
    """Return factors with one more, so that their product is the total."""
    product = math.prod(factors.values())
    return {**factors, rest: total / product if product else 0.0}


def _logits(total: float, module: Module, sizes: ParallelSizes, tokens: float) -> dict[str, float]:
    if not isinstance(module, LanguageModel):
        return {"bytes": total}
    rows = float(module.padded_vocab(sizes.tensor) / sizes.tensor)
    return {"bytes": LOGIT, "tokens": tokens, "vocabulary on the rank": rows}


def _short(value: float) -> str:
    return f"{value:,.4g}" if value < 1e4 else f"{value:.4g}"
