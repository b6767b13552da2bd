"""The values that are tried in each dimension, and what is cut if there are too many."""

import math
from collections.abc import Mapping

from mimokit.axes import LAYOUT_FIELDS, Axis, Choice
from mimokit.config.rules.facts import ModuleFacts
from mimokit.config.sizes import RECOMPUTE_NAMES
from mimokit.layout_search.constraints import DIMENSIONS, Constraints
from mimokit.units import counted

Axes = Mapping[str, tuple[int, ...]]
"""Dimension -> values to try, in the order of `DIMENSIONS`."""

LARGEST_MICRO_BATCH = 8
LARGEST_INSTANCES = 4
LARGEST_ENCODER_PIPELINE = 4
LARGEST_ENCODER_CHUNKS = 2
LEAST_TOKENS = 1024
"""Tokens below which a sequence is not cut further by context parallelism."""
MOST_SIZES = 4_000_000
"""Points of one module's grid, before rules are applied."""

_CUTS: tuple[tuple[Axis | Choice, int], ...] = (
    (Choice.OPTIMIZER_INSTANCES, 1),
    (Axis.DATA, 32),
    (Axis.VIRTUAL_PIPELINE, 6),
    (Axis.PIPELINE, 12),
    (Axis.EXPERT, 6),
    (Axis.CONTEXT, 4),
    (Choice.MICRO_BATCH, 3),
    (Axis.DATA, 12),
    (Axis.TENSOR, 6),
    (Axis.VIRTUAL_PIPELINE, 3),
    (Axis.PIPELINE, 6),
    (Axis.DATA, 6),
)
"""What a grid that is too large keeps of a dimension, in this order until it is small enough."""


def default_axes(facts: ModuleFacts, domain_ranks: int) -> Axes:
    """Return the values that make sense for a module.

    Tensor parallelism stays inside a domain of fast links; pipelines have powers of two or divisors
    of the layers as stages; replicas divide the samples of a step.
    """
    doubling = _powers(facts.gpus)
    layers = _divisors(facts.layers, facts.gpus)
    stages = tuple(sorted({*layers, *(p for p in doubling if p <= facts.layers)}))
    experts = _divisors(facts.experts, facts.gpus) if facts.experts else (1,)
    language = facts.is_language
    chunks = tuple(v for v in stages if v <= facts.layers // 2) or (1,)
    if not language:
        stages = tuple(p for p in stages if p <= LARGEST_ENCODER_PIPELINE)
        chunks = tuple(v for v in chunks if v <= LARGEST_ENCODER_CHUNKS)
    longest = max(1, facts.seq // LEAST_TOKENS)
    values: dict[Axis | Choice, tuple[int, ...]] = {
        Axis.TENSOR: _powers(min(facts.gpus, domain_ranks)),
        Axis.CONTEXT: _powers(min(facts.gpus, longest)),
        Axis.PIPELINE: stages,
        Axis.VIRTUAL_PIPELINE: chunks,
        Axis.EXPERT: experts,
        Axis.DATA: _divisors(facts.global_batch_size, facts.gpus),
        Choice.MICRO_BATCH: _powers(LARGEST_MICRO_BATCH) if language else (1,),
        Choice.RECOMPUTE: tuple(range(len(RECOMPUTE_NAMES))),
        Choice.OPTIMIZER_INSTANCES: _powers(LARGEST_INSTANCES),
    }
    return {LAYOUT_FIELDS[choice]: tried for choice, tried in values.items()}


def axes_of(
    facts: ModuleFacts, constraints: Constraints, domain_ranks: int
) -> tuple[Axes, tuple[str, ...]]:
    """Return the values to try for a module, and a sentence per dimension that was cut."""
    axes = dict(default_axes(facts, domain_ranks))
    for dimension in DIMENSIONS:
        chosen = constraints.values(facts.name, dimension, is_language=facts.is_language)
        if chosen is not None and (
            facts.is_language or dimension != LAYOUT_FIELDS[Choice.MICRO_BATCH]
        ):
            axes[dimension] = tuple(dict.fromkeys(chosen))
    full = dict(axes)
    for choice, most in _CUTS:
        dimension = LAYOUT_FIELDS[choice]
        if _points(axes) > MOST_SIZES:
            axes[dimension] = spread(axes[dimension], most)
    cut = tuple(
        f"Module '{facts.name}': {dimension} was tried at {len(axes[dimension])} of "
        f"{counted(len(full[dimension]), 'value')} ({', '.join(map(str, axes[dimension]))})."
        for dimension in axes
        if len(axes[dimension]) < len(full[dimension])
    )
    return axes, cut


def spread(values: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Return at most `most` of the values, evenly spread, including the first."""
    if len(values) <= most:
        return values
    step = (len(values) - 1) / max(1, most - 1)
    return tuple(dict.fromkeys(values[round(step * index)] for index in range(most)))


def _points(axes: Axes) -> int:
    return math.prod(len(values) for values in axes.values())


def _powers(most: int) -> tuple[int, ...]:
    return tuple(2**exponent for exponent in range(max(1, most).bit_length()))


def _divisors(number: int, most: int) -> tuple[int, ...]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return tuple(
        sorted({n for divisor in small for n in (divisor, number // divisor) if n <= most})
    )
