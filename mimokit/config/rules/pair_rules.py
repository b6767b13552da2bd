"""The sizes that an encoder may have next to the language model: one table for every reader.

The rules are those of the deployment modes. As in `mimokit.config.rules.module_rules`, predicates
take one layout or a million.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mimokit.axes import CONFIG_FIELDS, SIZE_FIELDS, Axis
from mimokit.config.errors import Problem
from mimokit.config.messages import NO_FIX, problem_at
from mimokit.config.rules.facts import PairFacts, unknown_sizes
from mimokit.config.rules.writing import size_path, tells
from mimokit.config.sizes import Numbers, ParallelSizes


@dataclass(frozen=True)
class PairRule:
    """One rule about an encoder next to another module; see `SizeRule`."""

    name: str
    reason: str
    reads: tuple[str, ...]
    holds: Callable[[ParallelSizes, ParallelSizes, PairFacts], Numbers]
    problem: Callable[[ParallelSizes, ParallelSizes, PairFacts], Problem]
    unless: tuple[str, ...] = ()


def shared_ranks_problem(name: str, sizes: ParallelSizes, world: int, why: str) -> Problem:
    """Return the problem of a module on shared ranks that takes more or fewer than there are."""
    replicas, left = divmod(world, sizes.ranks_per_replica)
    fits = not left and replicas > 0
    right = (
        f"set data_parallel to {replicas}"
        if fits
        else f"no data_parallel fits, choose sizes whose product divides {world}"
    )
    what = (
        f", which makes {sizes.ranks} ranks (tensor {sizes.tensor} x context {sizes.context} x "
        f"pipeline {sizes.pipeline} x data {sizes.data}), but {why}; {right}."
    )
    return problem_at(
        size_path(name, "data_parallel"), sizes.data, what, replicas if fits else NO_FIX
    )


def _same_size(axis: Axis) -> PairRule:
    field, config_field = SIZE_FIELDS[axis], CONFIG_FIELDS[axis]

    def holds(sizes: ParallelSizes, other: ParallelSizes, facts: PairFacts) -> Numbers:
        left: Numbers = getattr(sizes, field)
        right: Numbers = getattr(other, field)
        if facts.mode != "homogeneous":
            return True
        if facts.in_first_stage and axis in (Axis.PIPELINE, Axis.EXPERT):
            return (left == right) | (left == 1)
        return left == right

    return PairRule(
        f"same {field}",
        "sizes differ in homogeneous mode",
        (field,),
        holds,
        tells(
            config_field,
            ", but homogeneous mode gives all modules the same sizes and '{facts.other}' has "
            f"{{other.{field}}}; set it to {{other.{field}}}, or use colocated mode.",
            lambda sizes, other, facts: getattr(other, field),
        ),
    )


def _fitting(sizes: ParallelSizes, other: ParallelSizes) -> int:
    """Return the smallest number of samples per replica of another that replicas can share."""
    step = int(sizes.data) // math.gcd(int(sizes.data), int(other.data))
    return math.ceil(float(other.micro_batch) / step) * step


SAMPLES = PairRule(
    "samples",
    "a micro-batch has fewer samples than the encoder has replicas",
    ("data", "micro_batch"),
    lambda sizes, other, facts: other.micro_batch * other.data % sizes.data == 0,
    tells(
        "data_parallel",
        ", which does not divide the {0} samples of a micro-batch (data.base_batch_size "
        "{other.micro_batch} x data_parallel {other.data} of '{facts.other}'); a base_batch_size "
        "of {1} would do.",
        lambda sizes, other, facts: _fitting(sizes, other),
        "data.base_batch_size",
        lambda sizes, other, facts: (other.data * other.micro_batch, _fitting(sizes, other)),
    ),
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
    tells(
        "data_parallel",
        ", and that of '{facts.other}' is {other.data}; one must divide the other, so that samples "
        "can be handed over whole.",
    ),
)
SHARED_RANKS = PairRule(
    "shared ranks",
    "modules on shared ranks take different numbers of them",
    ("tensor", "context", "pipeline", "data"),
    lambda sizes, other, facts: facts.mode != "colocated" or sizes.ranks == other.ranks,
    lambda sizes, other, facts: shared_ranks_problem(
        facts.name,
        sizes,
        int(other.ranks),
        f"'{facts.other}' takes {other.ranks} and all modules share their ranks",
    ),
)
SAME_SAMPLES = PairRule(
    "micro-batches",
    "an encoder's micro-batches have other samples than the language model's",
    ("data", "micro_batch"),
    lambda sizes, other, facts: sizes.micro_batch * sizes.data == other.micro_batch * other.data,
    tells(
        "micro_batch_size",
        ", which times data_parallel {sizes.data} are {0} samples, but a micro-batch of "
        "'{facts.other}' has {1}; make them equal.",
        values=lambda sizes, other, facts: (
            sizes.micro_batch * sizes.data,
            other.micro_batch * other.data,
        ),
    ),
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
    tells(
        "pipeline_parallel",
        ", but an encoder on shared ranks has one stage, or as many as '{facts.other}' "
        "({other.pipeline}); set it to 1, or use heterogeneous mode.",
        1,
    ),
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
    sizes: ParallelSizes,
    other: ParallelSizes,
    facts: PairFacts,
    rules: Sequence[PairRule] = PAIR_RULES,
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
