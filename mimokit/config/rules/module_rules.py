"""The parallel sizes that one module may have: one table for every reader.

Config, prediction, search, interop and the planner read it. Predicates consist of operators that
broadcast: one layout or a million use the same row. The rules are Megatron-Core's
(`TransformerConfig.__post_init__`, `initialize_model_parallel`, `MoELayer.forward`,
`forward_backward_pipelining_with_interleaving`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mimokit.config.errors import Fix, Problem
from mimokit.config.rules.facts import (
    ModuleFacts,
    ModuleSizes,
    Numbers,
    a_fix,
    module_problem,
    network_path,
    network_problem,
    not_a_multiple,
    size_path,
    size_problem,
    unknown_sizes,
)
from mimokit.units import counted

CHUNKS = "virtual_pipeline_model_parallel_size"
INSTANCES = "num_distributed_optimizer_instances"
LOSS_END = "account_for_loss_in_pipeline_split"


@dataclass(frozen=True)
class SizeRule:
    """One rule about the sizes of one module.

    Attributes:
        reason: what is wrong, without numbers, as a search counts it.
        holds: whether sizes keep the rule; an array where sizes are arrays.
        problem: what is wrong with one layout, with numbers, and what would be right.
        unless: rules that make this one silent where they are broken: they have to be met first.
    """

    name: str
    reason: str
    reads: tuple[str, ...]
    holds: Callable[[ModuleSizes, ModuleFacts], Numbers]
    problem: Callable[[ModuleSizes, ModuleFacts], Problem]
    unless: tuple[str, ...] = ()


def _divides_width(field: str, fact: str) -> Callable[[ModuleSizes, ModuleFacts], Problem]:
    return lambda sizes, facts: not_a_multiple(
        facts.name, field, getattr(facts, fact), "tensor_parallel", int(sizes.tensor)
    )


def _kv_heads(sizes: ModuleSizes, facts: ModuleFacts) -> Problem:
    what = f"and tensor_parallel {sizes.tensor}; one must divide the other, change one of them."
    return network_problem(facts.name, "num_query_groups", facts.kv_heads, what)


def _tensor(sizes: ModuleSizes, facts: ModuleFacts, what: str, fix: Fix | None = None) -> Problem:
    sentence = f"tensor_parallel is {sizes.tensor}, {what}"
    return module_problem(facts.name, "tensor_parallel", sizes.tensor, sentence, fix)


def _value_biases(sizes: ModuleSizes, facts: ModuleFacts) -> Problem:
    what = (
        f"whose ranks share {counted(facts.kv_heads, 'query group')}, and cannot share the "
        f"{facts.value_biases} biases of their values evenly (add_key_bias is false); choose at "
        f"most {facts.kv_heads}, or leave out add_key_bias."
    )
    return _tensor(sizes, facts, what, a_fix(network_path(facts.name, "add_key_bias"), None))


def _projector_holds(sizes: ModuleSizes, facts: ModuleFacts) -> Numbers:
    return math.gcd(*facts.projector_widths) % sizes.tensor == 0


def _projector(sizes: ModuleSizes, facts: ModuleFacts) -> Problem:
    width = next(width for width in facts.projector_widths if width % sizes.tensor)
    what = (
        f"which does not divide the {width} outputs of a matrix of its projector; choose a "
        "divisor, or other projector.hidden_sizes."
    )
    return _tensor(sizes, facts, what)


def _first_layers(sizes: ModuleSizes, facts: ModuleFacts) -> Numbers:
    layers, fewer = sizes.layers_per_chunk(facts.layers, facts.extra)
    return layers - fewer


def _inner_layers(sizes: ModuleSizes, facts: ModuleFacts) -> Problem:
    first = int(_first_layers(sizes, facts))
    if facts.layers < facts.inner_layers:
        what = (
            f"fewer than the {facts.inner_layers} layers that add the rows of inner layers of an "
            "encoder (projector.deepstack_layers); name fewer there."
        )
        return network_problem(facts.name, "num_layers", facts.layers, what)
    what = (
        f"which leaves {counted(first, 'layer')} to the first chunk of its first stage, but its "
        f"first {facts.inner_layers} layers add the rows of inner layers of an encoder "
        f"(projector.deepstack_layers); lower pipeline_parallel or {CHUNKS}, or name fewer layers "
        "there."
    )
    return size_problem(facts.name, "pipeline_parallel", sizes.pipeline, what)


def _pieces(sizes: ModuleSizes, facts: ModuleFacts) -> Numbers:
    """Pieces of a sequence: a causal one is dealt out in two per context-parallel rank."""
    return sizes.context * (1 + facts.is_language * (sizes.context > 1))


def _context(sizes: ModuleSizes, facts: ModuleFacts) -> Problem:
    what = (
        f"which cuts its {facts.seq} tokens into {_pieces(sizes, facts)} unequal pieces; choose "
        "one that divides them."
    )
    return size_problem(facts.name, "context_parallel", sizes.context, what)


def _shards_hold(sizes: ModuleSizes, facts: ModuleFacts) -> Numbers:
    """Only a language model's sequence has to divide: inputs of encoders are padded to fit."""
    tokens = facts.seq * facts.is_language // sizes.context
    return (tokens % sizes.tensor == 0) | (sizes.sequence_parallel == 0)


def _shards(sizes: ModuleSizes, facts: ModuleFacts) -> Problem:
    what = (
        f"which does not divide the {facts.seq // sizes.context} tokens of a context-parallel "
        "rank, as sequence_parallel asks for; choose a divisor"
    )
    if facts.experts:
        return _tensor(sizes, facts, f"{what}.")
    fix = a_fix(size_path(facts.name, "sequence_parallel"), False)
    return _tensor(sizes, facts, f"{what}, or set sequence_parallel to false.", fix)


def _one_stage(sizes: ModuleSizes, facts: ModuleFacts) -> Problem:
    what = (
        "but its pipeline_parallel is 1; chunks are of the stages of a pipeline, so leave it out."
    )
    return size_problem(facts.name, CHUNKS, sizes.virtual, what, None)


def _layers_hold(sizes: ModuleSizes, facts: ModuleFacts) -> Numbers:
    """Layers alone divide, or layers with embedding and loss, and no chunk is without a layer."""
    chunks = sizes.chunks
    even = facts.layers % chunks == 0
    if facts.ends is False:
        return even
    with_ends = (facts.layers_with_ends % chunks == 0) & (chunks <= facts.most_chunks)
    return with_ends & (facts.layers % chunks != 0) if facts.ends else even | with_ends


def _layers(sizes: ModuleSizes, facts: ModuleFacts) -> Problem:
    chunks, layers = int(sizes.chunks), facts.layers
    if facts.ends:
        return _layers_with_ends(sizes, facts)
    divisor = "pipeline_parallel" if sizes.virtual == 1 else f"pipeline_parallel x {CHUNKS}"
    if facts.ends is False:
        return not_a_multiple(facts.name, "num_layers", layers, divisor, chunks)
    nearest = max(chunks, round(layers / chunks) * chunks)
    what = (
        f"and {divisor} {chunks}; the layers cannot be dealt to {sizes.pipeline} stages x "
        f"{sizes.virtual} chunks, as {chunks} divides neither {layers} nor, with embedding and "
        f"loss counted as layers, {facts.layers_with_ends}, or leaves a chunk without a layer; "
        "choose a product that divides one of them."
    )
    return network_problem(facts.name, "num_layers", layers, what, nearest)


def _layers_with_ends(sizes: ModuleSizes, facts: ModuleFacts) -> Problem:
    chunks, layers = sizes.chunks, facts.layers
    change = "change pipeline_parallel, or leave out both"
    if layers % chunks == 0:
        why = f"the {chunks} chunks divide the {layers} layers (num_layers) alone; leave out both"
    elif facts.layers_with_ends % chunks:
        why = (
            f"with both ends there are {facts.layers_with_ends} layers, which the {chunks} chunks "
            f"do not divide; {change}"
        )
    elif chunks <= layers:
        why = (
            f"each of {chunks} chunks takes {facts.layers_with_ends // chunks} layers, but the last"
            f" has the loss and the {facts.extra} of mtp_num_layers; {change}"
        )
    else:
        why = (
            f"there are {chunks} chunks for {layers} layers (num_layers), so that one has none; "
            f"{change}"
        )
    return size_problem(facts.name, LOSS_END, True, f"but {why}.", None)


def _experts_hold(sizes: ModuleSizes, facts: ModuleFacts) -> Numbers:
    if facts.experts or facts.plans_experts:
        return facts.experts % sizes.expert == 0
    return (sizes.expert == 1) & (sizes.expert_tensor == 1)


def _experts(sizes: ModuleSizes, facts: ModuleFacts) -> Problem:
    if facts.experts:
        return not_a_multiple(
            facts.name, "num_moe_experts", facts.experts, "expert_parallel", int(sizes.expert)
        )
    field, size = "expert_parallel", sizes.expert
    if size == 1:
        field, size = "expert_tensor_parallel", sizes.expert_tensor
    return size_problem(facts.name, field, size, "but it has no experts; set it to 1.", 1)


def _expert_biases(sizes: ModuleSizes, facts: ModuleFacts) -> Problem:
    field, size = "expert_tensor_parallel", sizes.expert_tensor
    sentence = (
        f"{field} is {size}, but experts that ranks share have no biases, and add_bias_linear is "
        "not false; set it to false."
    )
    fix = a_fix(network_path(facts.name, "add_bias_linear"), False)
    return module_problem(facts.name, field, size, sentence, fix)


def _expert_tokens(sizes: ModuleSizes, facts: ModuleFacts) -> Problem:
    what = (
        "and each of these ranks would send the same tokens to the experts; set sequence_parallel "
        "to true, so that they share them."
    )
    fix = a_fix(size_path(facts.sized_by or facts.name, "sequence_parallel"), True)
    return _tensor(sizes, facts, what, fix)


def _expert_width(sizes: ModuleSizes, facts: ModuleFacts) -> Problem:
    field, ranks = "moe_ffn_hidden_size", int(sizes.expert_tensor)
    return not_a_multiple(facts.name, field, facts.expert_ffn, "expert_tensor_parallel", ranks)


def _stage_ranks(sizes: ModuleSizes, facts: ModuleFacts) -> Problem:
    ranks = (
        f"the {sizes.ranks_per_stage} ranks of a pipeline stage (tensor x context x data parallel)"
    )
    if sizes.expert_tensor > 1:
        what = (
            f"and times expert_parallel {sizes.expert} it does not divide {ranks}; choose sizes "
            f"whose product divides {sizes.ranks_per_stage}."
        )
        field, size = "expert_tensor_parallel", sizes.expert_tensor
        return size_problem(facts.name, field, size, what)
    what = f"which does not divide {ranks}; choose a divisor of {sizes.ranks_per_stage}."
    return size_problem(facts.name, "expert_parallel", sizes.expert, what)


def _batch(sizes: ModuleSizes, facts: ModuleFacts) -> Problem:
    what = (
        f"and times micro_batch_size {sizes.micro_batch} it does not divide the "
        f"{facts.global_batch_size} samples of a step; choose sizes whose product does."
    )
    return size_problem(facts.name, "data_parallel", sizes.data, what)


def rounds_are_whole(micro_batches: Numbers, sizes: ModuleSizes) -> Numbers:
    """Whether chunks take micro-batches in multiples of the stages, which Megatron-Core asks for.

    It is a condition of `forward_backward_pipelining_with_interleaving`; runs of mimokit take any
    number.
    """
    return (sizes.virtual == 1) | (micro_batches % sizes.pipeline == 0)


def _expert_replicas(sizes: ModuleSizes) -> Numbers:
    return sizes.ranks_per_stage // (sizes.expert * sizes.expert_tensor)


def _instances(sizes: ModuleSizes, facts: ModuleFacts) -> Problem:
    count, of = sizes.replicas, "replicas (data x context parallel)"
    if count % sizes.instances == 0:
        count, of = _expert_replicas(sizes), "replicas of an expert"
    what = f"which does not divide its {count} {of}; choose a divisor of {count}."
    return size_problem(facts.name, INSTANCES, sizes.instances, what)


VOCABULARY = SizeRule(
    "vocabulary",
    "tensor parallelism does not divide the vocabulary",
    ("tensor",),
    lambda sizes, facts: facts.vocab % sizes.tensor == 0,
    _divides_width("vocab_size", "vocab"),
)
STAGE_RANKS = SizeRule(
    "stage ranks",
    "expert parallelism does not divide the ranks of a stage",
    ("tensor", "context", "expert", "expert_tensor", "data"),
    lambda sizes, facts: sizes.ranks_per_stage % (sizes.expert * sizes.expert_tensor) == 0,
    _stage_ranks,
    unless=("experts",),
)
RULES = (
    SizeRule(
        "heads",
        "tensor parallelism does not divide the attention heads",
        ("tensor",),
        lambda sizes, facts: facts.heads % sizes.tensor == 0,
        _divides_width("num_attention_heads", "heads"),
    ),
    SizeRule(
        "key heads",
        "tensor parallelism and the key heads do not divide each other",
        ("tensor",),
        lambda sizes, facts: (
            (facts.kv_heads % sizes.tensor == 0) | (sizes.tensor % max(1, facts.kv_heads) == 0)
        ),
        _kv_heads,
        unless=("heads",),
    ),
    SizeRule(
        "value biases",
        "ranks cannot share the biases of values",
        ("tensor",),
        lambda sizes, facts: (
            (facts.value_biases % sizes.tensor == 0) | (sizes.tensor <= facts.kv_heads)
        ),
        _value_biases,
        unless=("heads", "key heads"),
    ),
    SizeRule(
        "feed-forward",
        "tensor parallelism does not divide the feed-forward width",
        ("tensor",),
        lambda sizes, facts: facts.ffn % sizes.tensor == 0,
        _divides_width("ffn_hidden_size", "ffn"),
    ),
    SizeRule(
        "shared expert",
        "tensor parallelism does not divide the feed-forward width",
        ("tensor",),
        lambda sizes, facts: facts.shared_ffn % sizes.tensor == 0,
        _divides_width("moe_shared_expert_intermediate_size", "shared_ffn"),
    ),
    VOCABULARY,
    SizeRule(
        "projector",
        "tensor parallelism does not divide the width of a projector",
        ("tensor",),
        _projector_holds,
        _projector,
    ),
    SizeRule(
        "context",
        "context parallelism does not divide the sequence",
        ("context",),
        lambda sizes, facts: facts.seq % _pieces(sizes, facts) == 0,
        _context,
    ),
    SizeRule(
        "sequence shards",
        "sequence parallelism does not divide the sequence",
        ("tensor", "context", "sequence_parallel"),
        _shards_hold,
        _shards,
        unless=("context",),
    ),
    SizeRule(
        "chunks",
        "several chunks per stage need a pipeline",
        ("pipeline", "virtual"),
        lambda sizes, facts: (sizes.virtual == 1) | (sizes.pipeline > 1),
        _one_stage,
    ),
    SizeRule(
        "layers",
        "layers cannot be dealt to the stages",
        ("pipeline", "virtual"),
        _layers_hold,
        _layers,
        unless=("chunks",),
    ),
    SizeRule(
        "inner layers",
        "the first chunk has too few layers to add the rows of inner layers of an encoder",
        ("pipeline", "virtual"),
        lambda sizes, facts: _first_layers(sizes, facts) >= facts.inner_layers,
        _inner_layers,
        unless=("chunks", "layers"),
    ),
    SizeRule(
        "experts",
        "expert parallelism does not divide the experts",
        ("expert", "expert_tensor"),
        _experts_hold,
        _experts,
    ),
    STAGE_RANKS,
    SizeRule(
        "expert width",
        "expert tensor parallelism does not divide the width of an expert",
        ("expert_tensor",),
        lambda sizes, facts: facts.expert_ffn % sizes.expert_tensor == 0,
        _expert_width,
    ),
    SizeRule(
        "expert biases",
        "experts that ranks share have no biases",
        ("expert_tensor",),
        lambda sizes, facts: (sizes.expert_tensor == 1) | (not facts.expert_biases),
        _expert_biases,
    ),
    SizeRule(
        "expert tokens",
        "experts ask for sequence parallelism next to tensor parallelism",
        ("tensor", "sequence_parallel"),
        lambda sizes, facts: (
            (sizes.tensor == 1) | (sizes.sequence_parallel != 0) | (facts.experts == 0)
        ),
        _expert_tokens,
    ),
    SizeRule(
        "batch",
        "the samples of a step cannot be dealt to the replicas",
        ("data", "micro_batch"),
        lambda sizes, facts: (
            facts.global_batch_size * facts.is_language % (sizes.data * sizes.micro_batch) == 0
        ),
        _batch,
    ),
    SizeRule(
        "instances",
        "optimizer instances do not divide the replicas",
        ("tensor", "context", "expert", "expert_tensor", "data", "instances"),
        lambda sizes, facts: (
            (sizes.replicas % sizes.instances == 0)
            & (_expert_replicas(sizes) % sizes.instances == 0)
        ),
        _instances,
    ),
)
"""In the order in which a search decides and counts them."""


def broken_rules(
    sizes: ModuleSizes, facts: ModuleFacts, rules: Sequence[SizeRule] = RULES
) -> Iterator[Problem]:
    """Yield one problem per rule that the sizes of one module break.

    Args:
        sizes: single numbers; rules that read replicas or samples of 0 are silent.
    """
    broken: set[str] = set()
    unknown = unknown_sizes(sizes)
    for rule in rules:
        if not unknown.isdisjoint(rule.reads):
            continue
        if not rule.holds(sizes, facts):
            if broken.isdisjoint(rule.unless):
                yield rule.problem(sizes, facts)
            broken.add(rule.name)
