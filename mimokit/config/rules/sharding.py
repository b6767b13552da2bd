"""How the modules of a config are cut: the rules of layouts, and fields that agree with them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.parallelism import ModuleParallelismConfig
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.facts import ModuleFacts, PairFacts, facts_of_network
from mimokit.config.rules.module_rules import broken_rules
from mimokit.config.rules.pair_rules import (
    PAIR_RULES,
    REPLICAS,
    SHARED_RANKS,
    PairRule,
    broken_pair_rules,
)
from mimokit.config.rules.rule import ConfigRule, Subject, problems_in
from mimokit.config.rules.writing import SIZES
from mimokit.config.sizes import ParallelSizes

OF_LANGUAGE_WHERE_HOMOGENEOUS = (
    "expert_tensor_parallel",
    "recompute_granularity",
    "num_distributed_optimizer_instances",
    "sequence_parallel",
    "use_distributed_optimizer",
    "use_megatron_fsdp",
    "overlap_grad_reduce",
)
"""Fields that encoders in the language module's first stage have from it."""
OF_PIPELINES = (
    "virtual_pipeline_model_parallel_size",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)
"""Fields about the chunks of a pipeline, which encoders in a first stage have not."""
NEXT_TO_LANGUAGE = tuple(rule for rule in PAIR_RULES if rule not in (SHARED_RANKS, REPLICAS))
"""The rules of each module next to the language module. Ranks are compared with the world, and
replicas along the topology (`mimokit.config.rules.ranks`)."""


def sharding_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield what breaks the rules of layouts, and fields that contradict them."""
    model, around = context.model, context.model.llm_module_name
    is_homogeneous = model.deployment_mode == "homogeneous"
    for name, module in context.sizes.items():
        if not context.has_valid_sizes(name):
            continue
        sizes, facts = context.cuts[name], _facts_of(context, name, module)
        if is_homogeneous and name != around:
            shards = context.cuts.get(around, ParallelSizes()).sequence_parallel
            sizes = replace(sizes.in_first_stage, sequence_parallel=shards)
            facts = replace(facts, sized_by=around)
        yield from broken_rules(sizes, facts)
    yield from problems_in(context, context.sizes, OF_ENDS)
    yield from pair_problems(context)
    if is_homogeneous:
        yield from problems_in(context, model.encoder_module_names, OF_FIRST_STAGES)


def _facts_of(
    context: ValidationContext, name: str, module: ModuleParallelismConfig
) -> ModuleFacts:
    """Return the facts of a module; what is unknown, or rejected before, is 0."""
    data, network = context.data, context.model.module_architectures.get(name)
    known: dict[str, Any] = {"name": name, "is_language": name == context.model.llm_module_name}
    known["global_batch_size"] = context.global_batch_size
    if data is not None and known["is_language"] and context.is_valid("data.seq_length"):
        known["seq"] = data.seq_length
    if network is None or not context.is_valid(f"model.module_architectures.{name}"):
        return ModuleFacts(**known, plans_experts=True)
    facts = facts_of_network(network, **known)
    if context.graph_is_valid:
        facts = _in_graph(context, facts, network)
    return _as_cut(facts, network, module)


def _in_graph(
    context: ValidationContext, facts: ModuleFacts, network: ModuleArchitecture
) -> ModuleFacts:
    model, widths = context.model, dict[int, None]()
    if facts.name in model.encoder_module_names:
        for _, taking in context.networks(model.receivers_of(facts.name)):
            widths |= dict.fromkeys(network.projector_widths(taking)[::2])  # ranks share these
    writes = facts.name in model.decoder_module_names and network.modality == "text"
    return replace(
        facts,
        vocab=network.vocab_size if writes else 0,
        projector_widths=tuple(widths),
        inner_layers=most_inner_layers(context) if facts.is_language else 0,
    )


def most_inner_layers(context: ValidationContext) -> int:
    """Return the inner layers whose rows the first layers of the language model add."""
    encoders = context.networks(context.model.encoder_module_names)
    return max((len(network.inner_layers) for _, network in encoders), default=0)


def _as_cut(
    facts: ModuleFacts, network: ModuleArchitecture, module: ModuleParallelismConfig
) -> ModuleFacts:
    """Return the facts without those about which another rule says what is wrong."""
    split = [getattr(module, field) for field in _ENDS]
    follows = network.ffn_hidden_size is None and facts.heads % module.tensor_parallel
    padded = network.vocabulary_multiple is not None
    uneven = facts.heads % network.kv_heads
    one_end = any(split) and not all(split)
    return replace(
        facts,
        kv_heads=0 if uneven else facts.kv_heads,
        ffn=0 if follows else facts.ffn,
        value_biases=0 if uneven else facts.value_biases,
        vocab=network.vocab_size if facts.is_language and not padded else facts.vocab,
        layers=0 if one_end else facts.layers,
        inner_layers=0 if one_end else facts.inner_layers,
        ends=all(split),
    )


def pair_problems(
    context: ValidationContext, rules: Sequence[PairRule] = NEXT_TO_LANGUAGE
) -> Iterator[Problem]:
    """Yield what of each module does not fit the language module."""
    model, language = context.model, context.model.llm_module_name
    if language not in context.sizes or not context.is_valid(
        "model.llm_module_name", "model.deployment_mode"
    ):
        return
    for name in context.sizes:
        if name == language or not context.has_valid_sizes(name, language):
            continue
        follows = not {name, language} <= context.world.given
        facts = PairFacts(
            model.deployment_mode,
            name,
            language,
            in_first_stage=False,
            global_batch_size=context.global_batch_size,
        )
        yield from broken_pair_rules(
            context.cuts[name],
            context.cuts[language],
            facts,
            [rule for rule in rules if not (follows and rule.name == "same data")],
        )


def _end(field: str, other: str) -> ConfigRule:
    return ConfigRule(
        f"{SIZES}.{field}",
        lambda m: getattr(m.sizes, field) and not getattr(m.sizes, other),
        f", but {other} is not; layers are dealt to stages with both ends or with none, so write "
        "both or none.",
        True,
        mends=f"{SIZES}.{other}",
        reads=(SIZES,),
    )


def _as_language(field: str) -> ConfigRule:
    def finds(m: Subject) -> bool:
        value, language = getattr(m.sizes, field), m.context.sizes.get(m.language)
        return value is not None and language is not None and value != getattr(language, field)

    return ConfigRule(
        f"{SIZES}.{field}",
        finds,
        ", but in homogeneous mode it has what '{language}' has; leave it out, or use colocated "
        "mode.",
        None,
        reads=(SIZES, SIZES.replace("{name}", "{language}")),
    )


_ENDS = [f"account_for_{end}_in_pipeline_split" for end in ("embedding", "loss")]
OF_ENDS = (_end(*_ENDS), _end(*_ENDS[::-1]))
OF_FIRST_STAGES = tuple(map(_as_language, (*OF_LANGUAGE_WHERE_HOMOGENEOUS, *OF_PIPELINES)))
