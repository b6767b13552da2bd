"""The sizes that an encoder may have next to the language model: one table for every reader.

The rules are those of the deployment modes. As in `mimokit.config.rules.module_rules`, predicates
take one layout or a million.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mimokit.axes import CONFIG_FIELDS, SIZE_FIELDS, Axis
from mimokit.config.errors import Fix, Problem
from mimokit.config.messages import NO_FIX
from mimokit.config.rules.facts import (
    ModuleSizes,
    Numbers,
    PairFacts,
    a_fix,
    module_problem,
    size_problem,
    unknown_sizes,
)


@dataclass(frozen=True)
class PairRule:
    """One rule about an encoder next to another module; see `SizeRule`."""

    name: str
    reason: str
    reads: tuple[str, ...]
    holds: Callable[[ModuleSizes, ModuleSizes, PairFacts], Numbers]
    problem: Callable[[ModuleSizes, ModuleSizes, PairFacts], Problem]
    unless: tuple[str, ...] = ()


def shared_ranks_problem(name: str, sizes: ModuleSizes, world: int, why: str) -> Problem:
    """Return the problem of a module on shared ranks that takes more or fewer than there are."""
    replicas, left = divmod(world, sizes.ranks_per_replica)
    fits = not left and replicas > 0
    right = (
        f"set data_parallel to {replicas}"
        if fits
        else f"no data_parallel fits, choose sizes whose product divides {world}"
    )
    what = (
        f"which makes {sizes.ranks} ranks (tensor {sizes.tensor} x context {sizes.context} x "
        f"pipeline {sizes.pipeline} x data {sizes.data}), but {why}; {right}."
    )
    return size_problem(name, "data_parallel", sizes.data, what, replicas if fits else NO_FIX)


def pipeline_problem(name: str, stages: int, right: str, fix: Fix) -> Problem:
    """Return the problem of a pipeline on shared ranks."""
    what = (
        f"pipeline_parallel is {stages}, but modules that share their ranks in colocated mode run "
        f"without a pipeline; {right}."
    )
    return module_problem(name, "pipeline_parallel", stages, what, fix)


def _same_size(axis: Axis) -> PairRule:
    field, config_field = SIZE_FIELDS[axis], CONFIG_FIELDS[axis]

    def holds(sizes: ModuleSizes, other: ModuleSizes, facts: PairFacts) -> Numbers:
        left: Numbers = getattr(sizes, field)
        right: Numbers = getattr(other, field)
        if facts.mode != "homogeneous":
            return True
        if facts.in_first_stage and axis in (Axis.PIPELINE, Axis.EXPERT):
            return (left == right) | (left == 1)
        return left == right

    def problem(sizes: ModuleSizes, other: ModuleSizes, facts: PairFacts) -> Problem:
        left, right = getattr(sizes, field), getattr(other, field)
        what = (
            f"but homogeneous mode gives all modules the same sizes and '{facts.other}' has "
            f"{right}; set it to {right}, or use colocated mode."
        )
        return size_problem(facts.name, config_field, left, what, right)

    reason = "sizes differ in homogeneous mode"
    return PairRule(f"same {field}", reason, (field,), holds, problem)


def _replicas(sizes: ModuleSizes, other: ModuleSizes, facts: PairFacts) -> Problem:
    what = (
        f"data_parallel is {sizes.data} and that of '{facts.other}' is {other.data}; one must "
        "divide the other, so that samples can be handed over whole."
    )
    return module_problem(facts.name, "data_parallel", sizes.data, what)


def _samples(sizes: ModuleSizes, other: ModuleSizes, facts: PairFacts) -> Problem:
    samples = other.data * other.micro_batch
    step = int(sizes.data) // math.gcd(int(sizes.data), int(other.data))
    fitting = math.ceil(float(other.micro_batch) / step) * step
    what = (
        f"data_parallel is {sizes.data}, which does not divide the {samples} samples of a "
        f"micro-batch (data.base_batch_size {other.micro_batch} x data_parallel {other.data} of "
        f"'{facts.other}'); a base_batch_size of {fitting} would do."
    )
    fix = a_fix("data.base_batch_size", fitting)
    return module_problem(facts.name, "data_parallel", sizes.data, what, fix)


def _micro_batches(sizes: ModuleSizes, other: ModuleSizes, facts: PairFacts) -> Problem:
    left, samples = sizes.micro_batch * sizes.data, other.micro_batch * other.data
    what = (
        f"which times data_parallel {sizes.data} are {left} samples, but a micro-batch of "
        f"'{facts.other}' has {samples}; make them equal."
    )
    return size_problem(facts.name, "micro_batch_size", sizes.micro_batch, what)


def _shared_ranks(sizes: ModuleSizes, other: ModuleSizes, facts: PairFacts) -> Problem:
    why = f"'{facts.other}' takes {other.ranks} and all modules share their ranks"
    return shared_ranks_problem(facts.name, sizes, int(other.ranks), why)


def _no_pipeline(sizes: ModuleSizes, other: ModuleSizes, facts: PairFacts) -> Problem:
    what = (
        f"but an encoder on shared ranks has one stage, or as many as '{facts.other}' "
        f"({other.pipeline}); set it to 1, or use heterogeneous mode."
    )
    return size_problem(facts.name, "pipeline_parallel", int(sizes.pipeline), what, 1)


SAMPLES = PairRule(
    "samples",
    "a micro-batch has fewer samples than the encoder has replicas",
    ("data", "micro_batch"),
    lambda sizes, other, facts: other.micro_batch * other.data % sizes.data == 0,
    _samples,
    unless=("same data",),
)
REPLICAS = PairRule(
    "replicas",
    "replicas of one module do not divide those of the other",
    ("data",),
    lambda sizes, other, facts: (
        (sizes.data % other.data == 0) | (other.data % sizes.data == 0)
        if facts.mode != "homogeneous"
        else True
    ),
    _replicas,
)
SHARED_RANKS = PairRule(
    "shared ranks",
    "modules on shared ranks take different numbers of them",
    ("tensor", "context", "pipeline", "data"),
    lambda sizes, other, facts: facts.mode != "colocated" or sizes.ranks == other.ranks,
    _shared_ranks,
)
SAME_SAMPLES = PairRule(
    "micro-batches",
    "an encoder's micro-batches have other samples than the language model's",
    ("data", "micro_batch"),
    lambda sizes, other, facts: sizes.micro_batch * sizes.data == other.micro_batch * other.data,
    _micro_batches,
    unless=("same data", "samples"),
)
SAME_STAGES = PairRule(
    "colocated pipeline",
    "an encoder on shared ranks has a pipeline of other stages",
    ("pipeline",),
    lambda sizes, other, facts: (
        (sizes.pipeline == 1) | (sizes.pipeline == other.pipeline)
        if facts.mode == "colocated"
        else True
    ),
    _no_pipeline,
)
PAIR_RULES = (
    _same_size(Axis.TENSOR),
    _same_size(Axis.CONTEXT),
    _same_size(Axis.PIPELINE),
    _same_size(Axis.EXPERT),
    _same_size(Axis.DATA),
    SHARED_RANKS,
    SAME_STAGES,
    REPLICAS,
    SAMPLES,
    SAME_SAMPLES,
)
"""Rules of an encoder next to the language model."""


def broken_pair_rules(
    sizes: ModuleSizes, other: ModuleSizes, facts: PairFacts, rules: Sequence[PairRule] = PAIR_RULES
) -> Iterator[Problem]:
    """Yield one problem per rule that one module next to another breaks.

    Args:
        sizes: of the module, single numbers; rules that read replicas or samples of 0 are silent.
    """
    broken: set[str] = set()
    unknown = unknown_sizes(sizes) | unknown_sizes(other)
    for rule in rules:
        if not unknown.isdisjoint(rule.reads):
            continue
        if not rule.holds(sizes, other, facts):
            if broken.isdisjoint(rule.unless):
                yield rule.problem(sizes, other, facts)
            broken.add(rule.name)
