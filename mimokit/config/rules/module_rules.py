"""The parallel sizes that one module may have: one table for every reader.

Config, prediction, search, interop and the planner read it. Predicates consist of operators that
broadcast: one layout or a million use the same row. The rules are Megatron-Core's
(`TransformerConfig.__post_init__`, `initialize_model_parallel`, `MoELayer.forward`,
`forward_backward_pipelining_with_interleaving`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mimokit.config.errors import Problem
from mimokit.config.rules.facts import ModuleFacts, unknown_sizes
from mimokit.config.rules.writing import (
    NET,
    NO_MULTIPLE,
    SIZES,
    nearest_multiple,
    no_multiple,
    tells,
    told,
)
from mimokit.config.sizes import Numbers, ParallelSizes

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
    holds: Callable[[ParallelSizes, ModuleFacts], Numbers]
    problem: Callable[[ParallelSizes, ModuleFacts], Problem]
    unless: tuple[str, ...] = ()


def _first_layers(sizes: ParallelSizes, facts: ModuleFacts) -> Numbers:
    layers, fewer = sizes.layers_per_chunk(facts.layers, facts.extra)
    return layers - fewer


def _inner_layers(sizes: ParallelSizes, facts: ModuleFacts) -> Problem:
    if facts.layers < facts.inner_layers:
        return _TOO_FEW_LAYERS(sizes, facts)
    return _SHORT_FIRST_CHUNK(sizes, facts)


_TOO_FEW_LAYERS = tells(
    "num_layers",
    ", fewer than the {facts.inner_layers} layers that add the rows of inner layers of an encoder "
    "(projector.deepstack_layers); name fewer there.",
)
_SHORT_FIRST_CHUNK = tells(
    "pipeline_parallel",
    ", which leaves {0:layer} to the first chunk of its first stage, but its first "
    "{facts.inner_layers} layers add the rows of inner layers of an encoder "
    f"(projector.deepstack_layers); lower pipeline_parallel or {CHUNKS}, or name fewer layers "
    "there.",
    values=lambda sizes, facts: (int(_first_layers(sizes, facts)),),
)


def _pieces(sizes: ParallelSizes, facts: ModuleFacts) -> Numbers:
    """Pieces of a sequence: a causal one is dealt out in two per context-parallel rank."""
    return sizes.context * (1 + facts.is_language * (sizes.context > 1))


def _shards_hold(sizes: ParallelSizes, facts: ModuleFacts) -> Numbers:
    """Only a language model's sequence has to divide: inputs of encoders are padded to fit."""
    tokens = facts.seq * facts.is_language // sizes.context
    return (tokens % sizes.tensor == 0) | (sizes.sequence_parallel == 0)


def _shards(sizes: ParallelSizes, facts: ModuleFacts) -> Problem:
    what = (
        f", which does not divide the {facts.seq // sizes.context} tokens of a context-parallel "
        "rank, as sequence_parallel asks for; choose a divisor"
    )
    if facts.experts:
        return tells("tensor_parallel", f"{what}.")(sizes, facts)
    mends = f"{SIZES}.sequence_parallel"
    what += ", or set sequence_parallel to false."
    return tells("tensor_parallel", what, False, mends)(sizes, facts)


def _layers_hold(sizes: ParallelSizes, facts: ModuleFacts) -> Numbers:
    """Layers alone divide, or layers with embedding and loss, and no chunk is without a layer."""
    chunks = sizes.chunks
    even = facts.layers % chunks == 0
    if facts.ends is False:
        return even
    with_ends = (facts.layers_with_ends % chunks == 0) & (chunks <= facts.most_chunks)
    return with_ends & (facts.layers % chunks != 0) if facts.ends else even | with_ends


def _layers(sizes: ParallelSizes, facts: ModuleFacts) -> Problem:
    if facts.ends:
        return _layers_with_ends(sizes, facts)
    chunks = int(sizes.chunks)
    right = nearest_multiple(facts.layers, chunks)
    divisor = "pipeline_parallel" if sizes.virtual == 1 else f"pipeline_parallel x {CHUNKS}"
    alone = told(NO_MULTIPLE, chunks, right, name=divisor)
    with_ends = (
        f", and {divisor} {chunks}; the layers cannot be dealt to {sizes.pipeline} stages x "
        f"{sizes.virtual} chunks, as {chunks} divides neither {facts.layers} nor, with embedding "
        f"and loss counted as layers, {facts.layers_with_ends}, or leaves a chunk without a layer; "
        "choose a product that divides one of them."
    )
    what = alone if facts.ends is False else with_ends
    return tells("num_layers", what, right)(sizes, facts)


def _layers_with_ends(sizes: ParallelSizes, facts: ModuleFacts) -> Problem:
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
    return tells(LOSS_END, f", but {why}.", None)(sizes, facts)


def _experts_hold(sizes: ParallelSizes, facts: ModuleFacts) -> Numbers:
    if facts.experts or facts.plans_experts:
        return facts.experts % sizes.expert == 0
    return (sizes.expert == 1) & (sizes.expert_tensor == 1)


def _experts(sizes: ParallelSizes, facts: ModuleFacts) -> Problem:
    if facts.experts:
        return no_multiple("num_moe_experts", "expert_parallel")(sizes, facts)
    field = "expert_tensor_parallel" if sizes.expert == 1 else "expert_parallel"
    return tells(field, ", but it has no experts; set it to 1.", 1)(sizes, facts)


_STAGE_RANKS = (
    "the {sizes.ranks_per_stage} ranks of a pipeline stage (tensor x context x data parallel)"
)


def _stage_ranks(sizes: ParallelSizes, facts: ModuleFacts) -> Problem:
    if sizes.expert_tensor > 1:
        return tells(
            "expert_tensor_parallel",
            f", and times expert_parallel {{sizes.expert}} it does not divide {_STAGE_RANKS}; "
            "choose sizes whose product divides {sizes.ranks_per_stage}.",
        )(sizes, facts)
    return tells(
        "expert_parallel",
        f", which does not divide {_STAGE_RANKS}; choose a divisor of {{sizes.ranks_per_stage}}.",
    )(sizes, facts)


def rounds_are_whole(micro_batches: Numbers, sizes: ParallelSizes) -> Numbers:
    """Whether chunks take micro-batches in multiples of the stages, which Megatron-Core asks for.

    It is a condition of `forward_backward_pipelining_with_interleaving`; runs of mimokit take any
    number.
    """
    return (sizes.virtual == 1) | (micro_batches % sizes.pipeline == 0)


def _expert_replicas(sizes: ParallelSizes) -> Numbers:
    return sizes.ranks_per_stage // (sizes.expert * sizes.expert_tensor)


def _uneven_replicas(sizes: ParallelSizes, facts: ModuleFacts) -> tuple[Numbers, str]:
    if sizes.replicas % sizes.instances:
        return sizes.replicas, "replicas (data x context parallel)"
    return _expert_replicas(sizes), "replicas of an expert"


VOCABULARY = SizeRule(
    "vocabulary",
    "tensor parallelism does not divide the vocabulary",
    ("tensor",),
    lambda sizes, facts: facts.vocab % sizes.tensor == 0,
    no_multiple("vocab_size", "tensor_parallel"),
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
        no_multiple("num_attention_heads", "tensor_parallel"),
    ),
    SizeRule(
        "key heads",
        "tensor parallelism and the key heads do not divide each other",
        ("tensor",),
        lambda sizes, facts: (
            (facts.kv_heads % sizes.tensor == 0) | (sizes.tensor % max(1, facts.kv_heads) == 0)
        ),
        tells(
            "num_query_groups",
            ", and tensor_parallel {sizes.tensor}; one must divide the other, change one of them.",
        ),
        unless=("heads",),
    ),
    SizeRule(
        "value biases",
        "ranks cannot share the biases of values",
        ("tensor",),
        lambda sizes, facts: (
            (facts.value_biases % sizes.tensor == 0) | (sizes.tensor <= facts.kv_heads)
        ),
        tells(
            "tensor_parallel",
            ", whose ranks share {facts.kv_heads:query group}, and cannot share the "
            "{facts.value_biases} biases of their values evenly (add_key_bias is false); choose at "
            "most {facts.kv_heads}, or leave out add_key_bias.",
            None,
            f"{NET}.add_key_bias",
        ),
        unless=("heads", "key heads"),
    ),
    SizeRule(
        "feed-forward",
        "tensor parallelism does not divide the feed-forward width",
        ("tensor",),
        lambda sizes, facts: facts.ffn % sizes.tensor == 0,
        no_multiple("ffn_hidden_size", "tensor_parallel"),
    ),
    SizeRule(
        "shared expert",
        "tensor parallelism does not divide the feed-forward width",
        ("tensor",),
        lambda sizes, facts: facts.shared_ffn % sizes.tensor == 0,
        no_multiple("moe_shared_expert_intermediate_size", "tensor_parallel"),
    ),
    VOCABULARY,
    SizeRule(
        "projector",
        "tensor parallelism does not divide the width of a projector",
        ("tensor",),
        lambda sizes, facts: math.gcd(*facts.projector_widths) % sizes.tensor == 0,
        tells(
            "tensor_parallel",
            ", which does not divide the {0} outputs of a matrix of its projector; choose a "
            "divisor, or other projector.hidden_sizes.",
            values=lambda s, facts: (next(w for w in facts.projector_widths if w % s.tensor),),
        ),
    ),
    SizeRule(
        "context",
        "context parallelism does not divide the sequence",
        ("context",),
        lambda sizes, facts: facts.seq % _pieces(sizes, facts) == 0,
        tells(
            "context_parallel",
            ", which cuts its {facts.seq} tokens into {0} unequal pieces; choose one that divides "
            "them.",
            values=lambda sizes, facts: (_pieces(sizes, facts),),
        ),
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
        tells(
            CHUNKS,
            ", but its pipeline_parallel is 1; chunks are of the stages of a pipeline, so leave it "
            "out.",
            None,
        ),
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
        no_multiple("moe_ffn_hidden_size", "expert_tensor_parallel"),
    ),
    SizeRule(
        "expert biases",
        "experts that ranks share have no biases",
        ("expert_tensor",),
        lambda sizes, facts: (sizes.expert_tensor == 1) | (not facts.expert_biases),
        tells(
            "expert_tensor_parallel",
            ", but experts that ranks share have no biases, and add_bias_linear is not false; set "
            "it to false.",
            False,
            f"{NET}.add_bias_linear",
        ),
    ),
    SizeRule(
        "expert tokens",
        "experts ask for sequence parallelism next to tensor parallelism",
        ("tensor", "sequence_parallel"),
        lambda sizes, facts: (
            (sizes.tensor == 1) | (sizes.sequence_parallel != 0) | (facts.experts == 0)
        ),
        tells(
            "tensor_parallel",
            ", and each of these ranks would send the same tokens to the experts; set "
            "sequence_parallel to true, so that they share them.",
            True,
            "model.module_parallelisms.{facts.sized_like}.sequence_parallel",
        ),
    ),
    SizeRule(
        "batch",
        "the samples of a step cannot be dealt to the replicas",
        ("data", "micro_batch"),
        lambda sizes, facts: (
            facts.global_batch_size * facts.is_language % (sizes.data * sizes.micro_batch) == 0
        ),
        tells(
            "data_parallel",
            ", and times micro_batch_size {sizes.micro_batch} it does not divide the "
            "{facts.global_batch_size} samples of a step; choose sizes whose product does.",
        ),
    ),
    SizeRule(
        "instances",
        "optimizer instances do not divide the replicas",
        ("tensor", "context", "expert", "expert_tensor", "data", "instances"),
        lambda sizes, facts: (
            (sizes.replicas % sizes.instances == 0)
            & (_expert_replicas(sizes) % sizes.instances == 0)
        ),
        tells(
            INSTANCES,
            ", which does not divide its {0} {1}; choose a divisor of {0}.",
            values=_uneven_replicas,
        ),
    ),
)
"""In the order in which a search decides and counts them."""


def broken_rules(
    sizes: ParallelSizes, facts: ModuleFacts, rules: Sequence[SizeRule] = RULES
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
