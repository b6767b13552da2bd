"""Which parallel sizes a module can have: each rule as an array test and as a sentence.

The rules are Megatron-Core's (`TransformerConfig.__post_init__`, `initialize_model_parallel`), in
the order in which they are counted: sizes that break several count for the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from mimokit.architecture.parallel_sizes import RECOMPUTE_SELECTIVE, Numbers, ParallelSizes
from mimokit.layout_search.facts import ModuleFacts


@dataclass(frozen=True)
class Rule:
    """One rule about one module.

    Attributes:
        after: the last dimension that it looks at, in the order of the search.
        reason: what is wrong, without numbers: what is counted.
        broken: tells, for arrays of sizes, where it is broken.
        sentence: says it with numbers, and what would be right.
    """

    after: str
    reason: str
    broken: Callable[[ModuleFacts, ParallelSizes], Numbers]
    sentence: Callable[[ModuleFacts, ParallelSizes], str]


def broken_rules(facts: ModuleFacts, sizes: ParallelSizes) -> Iterator[str]:
    """Yield a sentence per rule that one module's sizes break."""
    for rule in RULES:
        if bool(rule.broken(facts, sizes)):
            yield f"Module '{facts.name}': {rule.sentence(facts, sizes)}"


def _kv_heads_broken(facts: ModuleFacts, sizes: ParallelSizes) -> Numbers:
    broken: Numbers = np.logical_and(
        np.not_equal(facts.kv_heads % sizes.tensor, 0),
        np.not_equal(sizes.tensor % facts.kv_heads, 0),
    )
    return broken


def _widths_broken(facts: ModuleFacts, sizes: ParallelSizes) -> Numbers:
    return sum((width % sizes.tensor for width in facts.widths), 0 * sizes.tensor) != 0


def _pieces(facts: ModuleFacts, sizes: ParallelSizes) -> Numbers:
    return np.where(np.greater(sizes.context, 1), facts.sequence_pieces * sizes.context, 1)


def _shards_broken(facts: ModuleFacts, sizes: ParallelSizes) -> Numbers:
    """Sequence parallelism cuts a language model's sequence; encoders are padded to fit."""
    if not facts.is_language:
        return np.equal(sizes.tensor, 0)
    return facts.seq // sizes.context % sizes.tensor != 0


def _layers_broken(facts: ModuleFacts, sizes: ParallelSizes) -> Numbers:
    """Layers alone have to divide, or layers with embedding and loss counted as layers."""
    chunks = sizes.pipeline * sizes.virtual
    even = facts.layers % chunks == 0
    with_ends = (facts.layers + 2 + facts.extra) % chunks == 0
    enough = chunks <= facts.layers
    return np.logical_not(np.logical_and(enough, np.logical_or(even, with_ends)))


def _stage_ranks(sizes: ParallelSizes) -> Numbers:
    return sizes.tensor * sizes.context * sizes.data


def _batch_broken(facts: ModuleFacts, sizes: ParallelSizes) -> Numbers:
    if not facts.is_language:
        return np.equal(sizes.data, 0)
    return facts.global_batch_size % (sizes.data * sizes.micro_batch) != 0


def _interleaving_broken(facts: ModuleFacts, sizes: ParallelSizes) -> Numbers:
    count = facts.global_batch_size // (sizes.data * sizes.micro_batch)
    return np.logical_and(np.greater(sizes.virtual, 1), count % sizes.pipeline != 0)


RULES = (
    Rule(
        "tensor_parallel",
        "tensor parallelism does not divide the attention heads",
        lambda facts, sizes: facts.heads % sizes.tensor != 0,
        lambda facts, sizes: (
            f"tensor_parallel is {sizes.tensor}, which does not divide its {facts.heads} "
            f"attention heads; choose a divisor of {facts.heads}."
        ),
    ),
    Rule(
        "tensor_parallel",
        "tensor parallelism and the key heads do not divide each other",
        _kv_heads_broken,
        lambda facts, sizes: (
            f"tensor_parallel is {sizes.tensor} and it has {facts.kv_heads} key and value heads; "
            "one must divide the other."
        ),
    ),
    Rule(
        "tensor_parallel",
        "tensor parallelism does not divide the feed-forward width",
        _widths_broken,
        lambda facts, sizes: (
            f"tensor_parallel is {sizes.tensor}, which does not divide its feed-forward width "
            f"{' and '.join(map(str, facts.widths))}; choose a common divisor."
        ),
    ),
    Rule(
        "context_parallel",
        "context parallelism does not divide the sequence",
        lambda facts, sizes: facts.seq % _pieces(facts, sizes) != 0,
        lambda facts, sizes: (
            f"context_parallel is {sizes.context}, which cuts its {facts.seq} tokens into "
            f"{int(_pieces(facts, sizes))} unequal pieces; choose one that divides them."
        ),
    ),
    Rule(
        "context_parallel",
        "sequence parallelism does not divide the sequence",
        _shards_broken,
        lambda facts, sizes: (
            f"tensor_parallel is {sizes.tensor}, which does not divide the "
            f"{facts.seq // sizes.context} tokens of a context-parallel rank; choose a divisor."
        ),
    ),
    Rule(
        "virtual_pipeline",
        "several chunks per stage need a pipeline",
        lambda facts, sizes: np.logical_and(
            np.greater(sizes.virtual, 1), np.equal(sizes.pipeline, 1)
        ),
        lambda facts, sizes: (
            f"virtual_pipeline is {sizes.virtual}, but there is a single stage; set it to 1."
        ),
    ),
    Rule(
        "virtual_pipeline",
        "layers cannot be dealt to the stages",
        _layers_broken,
        lambda facts, sizes: (
            f"its {facts.layers} layers cannot be dealt to {sizes.pipeline} stages x "
            f"{sizes.virtual} chunks; the product must divide {facts.layers} or, with embedding "
            f"and loss counted as layers, {facts.layers + 2 + facts.extra}."
        ),
    ),
    Rule(
        "expert_parallel",
        "expert parallelism does not divide the experts",
        lambda facts, sizes: np.logical_and(
            np.greater(sizes.expert, 1),
            np.equal(facts.experts, 0) | (facts.experts % sizes.expert != 0),
        ),
        lambda facts, sizes: (
            f"expert_parallel is {sizes.expert}, but it has {facts.experts or 'no'} experts; "
            "choose a divisor."
            if facts.experts
            else f"expert_parallel is {sizes.expert}, but it has no experts; set it to 1."
        ),
    ),
    Rule(
        "data_parallel",
        "more GPUs than there are",
        lambda facts, sizes: np.greater(sizes.ranks, facts.gpus),
        lambda facts, sizes: (
            f"it takes {sizes.ranks} GPUs and there are {facts.gpus}; choose smaller sizes."
        ),
    ),
    Rule(
        "data_parallel",
        "expert parallelism does not divide the ranks of a stage",
        lambda facts, sizes: _stage_ranks(sizes) % sizes.expert != 0,
        lambda facts, sizes: (
            f"expert_parallel is {sizes.expert}, which does not divide the {_stage_ranks(sizes)} "
            "ranks of a stage (tensor x context x data parallel); choose a divisor."
        ),
    ),
    Rule(
        "micro_batch_size",
        "the samples of a step cannot be dealt to the replicas",
        _batch_broken,
        lambda facts, sizes: (
            f"data_parallel {sizes.data} x micro_batch_size {sizes.micro_batch} does not divide "
            f"the {facts.global_batch_size} samples of a step; choose sizes whose product does."
        ),
    ),
    Rule(
        "micro_batch_size",
        "interleaved stages need micro-batches in multiples of the stages",
        _interleaving_broken,
        lambda facts, sizes: (
            f"virtual_pipeline is {sizes.virtual} and a replica has "
            f"{facts.global_batch_size // (sizes.data * sizes.micro_batch)} micro-batches, no "
            f"multiple of the {sizes.pipeline} stages; set virtual_pipeline to 1 or change "
            "data_parallel."
        ),
    ),
    Rule(
        "recompute",
        "flash attention leaves selective recomputation nothing to save",
        lambda facts, sizes: np.logical_and(
            facts.fused_attention, np.equal(sizes.recompute, RECOMPUTE_SELECTIVE)
        ),
        lambda facts, sizes: (
            "recompute is selective, which saves nothing with flash attention; choose none or full."
        ),
    ),
    Rule(
        "optimizer_instances",
        "optimizer instances do not divide the replicas",
        lambda facts, sizes: sizes.replicas % sizes.instances != 0,
        lambda facts, sizes: (
            f"optimizer_instances is {sizes.instances}, which does not divide its "
            f"{sizes.replicas} data x context replicas; choose a divisor."
        ),
    ),
)
"""In the order in which they are decided and counted."""
