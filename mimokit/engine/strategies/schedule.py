"""Learning rates over steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from mimokit.config.errors import ConfigError, Problem

LAMBDA_COSINE = "lambda_cosine"
LEAST = 0.1
"""Share of the learning rate that a cosine ends at."""


def build_scheduler(
    kind: str | type[LRScheduler] | None,
    optimizer: torch.optim.Optimizer,
    arguments: Mapping[str, Any],
    max_steps: int | None,
) -> LRScheduler | None:
    """Return the scheduler of an optimizer.

    Args:
        kind: "lambda_cosine", a class of torch, or None for a constant rate.
        arguments: of the scheduler; of lambda_cosine warmup_steps, cosine_anneal and max_steps.
        max_steps: steps of the run, if they are known.

    Raises:
        ConfigError: the scheduler or its argument does not exist.
    """
    if kind is None:
        return None
    if isinstance(kind, str):
        if kind != LAMBDA_COSINE:
            raise _rejected(kind, f"write {LAMBDA_COSINE}, or give a class of torch")
        return LambdaLR(optimizer, lambda_cosine(max_steps=max_steps, given=arguments))
    return kind(optimizer, **arguments)


def lambda_cosine(max_steps: int | None, given: Mapping[str, Any]) -> Callable[[int], float]:
    """Return the factor at a step counted from 0: a linear warm-up, then constant or a cosine.

    Raises:
        ConfigError: an unknown argument, or a cosine without an end.
    """
    unknown = set(given) - {"warmup_steps", "cosine_anneal", "max_steps"}
    if unknown:
        raise _rejected(
            ", ".join(sorted(unknown)), "its arguments are warmup_steps, cosine_anneal, max_steps"
        )
    warmup = int(given.get("warmup_steps", 1))
    ends = [one for one in (max_steps, given.get("max_steps")) if one is not None]
    anneal = bool(given.get("cosine_anneal", False))
    if anneal and not ends:
        raise _rejected("cosine_anneal", "it needs max_steps")

    def factor(step: int) -> float:
        if step < warmup:
            return step / max(warmup, 1)
        if not anneal:
            return 1.0
        done = (step - warmup) / max(1, min(ends) - warmup)
        return (1 - LEAST) * 0.5 * (1 + math.cos(math.pi * done)) + LEAST

    return factor


def _rejected(value: str, right: str) -> ConfigError:
    sentence = f"lr_scheduler: {value} is not known; {right}."
    return ConfigError([Problem("strategy", "lr_scheduler", value, sentence)])
