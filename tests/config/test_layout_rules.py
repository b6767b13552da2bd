"""The table of layout rules against brute force on 100,000 layouts, and against Megatron-Core."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mimokit.config.rules.facts import ModuleFacts, PairFacts
from mimokit.config.rules.module_rules import RULES, SizeRule
from mimokit.config.rules.pair_rules import PAIR_RULES, PairRule
from mimokit.config.sizes import ParallelSizes
from tests.rows import rows

MODULES, SIZES_OF_EACH = 100, 1_000
MODES = ("homogeneous", "colocated", "heterogeneous")


@functools.cache
def even(items: int, ranks: int) -> bool:
    """Deal items out one by one, and see whether all ranks have as many."""
    hands = [0] * ranks
    for item in range(items):
        hands[item % ranks] += 1
    return len(set(hands)) == 1


def heads_hold(f: ModuleFacts, s: ParallelSizes) -> bool:
    return even(f.heads, s.tensor)


def key_heads_hold(f: ModuleFacts, s: ParallelSizes) -> bool:
    """Every rank has as many key heads, or every key head has as many ranks."""
    return even(f.kv_heads, s.tensor) or even(s.tensor, f.kv_heads)


def context_holds(f: ModuleFacts, s: ParallelSizes) -> bool:
    """A causal sequence is cut in 2 c pieces: rank r has the r-th from the front and the back."""
    return even(f.seq, 2 * s.context if f.is_language and s.context > 1 else s.context)


def shards_hold(f: ModuleFacts, s: ParallelSizes) -> bool:
    return not f.is_language or not s.sequence_parallel or even(f.seq // s.context, s.tensor)


def layers_hold(f: ModuleFacts, s: ParallelSizes) -> bool:
    """Layers alone, or with embedding and loss counted as layers; no more chunks than layers."""
    chunks = s.pipeline * s.virtual
    alone = even(f.layers, chunks)
    each, rest = divmod(f.layers + 2 + f.extra, chunks)
    with_ends = rest == 0 and chunks <= f.layers and each >= 1 + f.extra
    return {None: alone or with_ends, False: alone, True: with_ends and not alone}[f.ends]


def inner_layers_hold(f: ModuleFacts, s: ParallelSizes) -> bool:
    """The first chunk of what is dealt, ends among it if layers alone do not come out even."""
    chunks, dealt = s.pipeline * s.virtual, ["layer"] * f.layers
    if not even(f.layers, chunks):
        dealt = ["embedding", *dealt, *["end"] * (1 + f.extra)]
    return dealt[: -(-len(dealt) // chunks)].count("layer") >= f.inner_layers


def experts_hold(f: ModuleFacts, s: ParallelSizes) -> bool:
    if f.experts == 0:
        return f.plans_experts or (s.expert, s.expert_tensor) == (1, 1)
    return even(f.experts, s.expert)


BRUTE: dict[str, Callable[[ModuleFacts, ParallelSizes], bool]] = {
    "heads": heads_hold,
    "key heads": key_heads_hold,
    "value biases": lambda f, s: s.tensor <= f.kv_heads or even(f.value_biases, s.tensor),
    "feed-forward": lambda f, s: even(f.ffn, s.tensor),
    "shared expert": lambda f, s: even(f.shared_ffn, s.tensor),
    "vocabulary": lambda f, s: even(f.vocab, s.tensor),
    "projector": lambda f, s: all(even(width, s.tensor) for width in f.projector_widths),
    "context": context_holds,
    "sequence shards": shards_hold,
    "chunks": lambda f, s: s.virtual == 1 or s.pipeline > 1,
    "layers": layers_hold,
    "inner layers": inner_layers_hold,
    "experts": experts_hold,
    "stage ranks": lambda f, s: even(s.tensor * s.context * s.data, s.expert * s.expert_tensor),
    "expert width": lambda f, s: even(f.expert_ffn, s.expert_tensor),
    "expert biases": lambda f, s: s.expert_tensor == 1 or not f.expert_biases,
    "expert tokens": lambda f, s: s.tensor == 1 or bool(s.sequence_parallel) or f.experts == 0,
    "batch": lambda f, s: not f.is_language or even(f.global_batch_size, s.data * s.micro_batch),
    "instances": lambda f, s: (
        even(s.data * s.context, s.instances)
        and even(s.tensor * s.context * s.data // (s.expert * s.expert_tensor), s.instances)
    ),
}
Pair = Callable[[PairFacts, ParallelSizes, ParallelSizes], bool]


def same(field: str) -> Pair:
    def holds(f: PairFacts, s: ParallelSizes, other: ParallelSizes) -> bool:
        own, right = getattr(s, field), getattr(other, field)
        first_stage = f.in_first_stage and field in ("pipeline", "expert") and own == 1
        return f.mode != "homogeneous" or own == right or first_stage

    return holds


BRUTE_PAIRS: dict[str, Pair] = {
    **{f"same {one}": same(one) for one in ("tensor", "context", "pipeline", "expert", "data")},
    "shared ranks": lambda f, s, other: (
        f.mode != "colocated"
        or s.tensor * s.context * s.pipeline * s.data
        == other.tensor * other.context * other.pipeline * other.data
    ),
    "colocated pipeline": lambda f, s, other: (
        f.mode != "colocated" or s.pipeline in (1, other.pipeline)
    ),
    "replicas": lambda f, s, other: (
        f.mode == "homogeneous" or even(s.data, other.data) or even(other.data, s.data)
    ),
    "samples": lambda f, s, other: even(other.data * other.micro_batch, s.data),
    "micro-batches": lambda f, s, other: s.data * s.micro_batch == other.data * other.micro_batch,
}


def some_facts(rng: np.random.Generator) -> ModuleFacts:
    language = bool(rng.integers(2))
    heads = int(rng.choice([4, 6, 8, 12, 16, 28]))
    kv_heads = int(rng.choice([n for n in range(1, heads + 1) if heads % n == 0]))
    return ModuleFacts(
        name="m",
        is_language=language,
        heads=heads,
        kv_heads=kv_heads,
        value_biases=kv_heads * int(rng.choice([0, 5, 8])),
        projector_widths=[(), (96,), (128, 100)][rng.integers(3)],
        inner_layers=int(rng.choice([0, 0, 1, 3, 5])),
        ffn=int(rng.choice([0, 96, 100, 256])),
        shared_ffn=int(rng.choice([0, 48, 66])),
        vocab=int(rng.choice([0, 1000, 1026])),
        layers=int(rng.choice([4, 5, 6, 10, 12, 30])),
        extra=int(rng.choice([0, 1, 3])),
        ends=[None, False, True][rng.integers(3)],
        experts=int(rng.choice([0, 4, 6, 8])),
        expert_ffn=int(rng.choice([0, 48, 50])),
        expert_biases=bool(rng.integers(2)),
        plans_experts=bool(rng.integers(2)),
        seq=int(rng.choice([0, 96, 100, 128, 250])),
        global_batch_size=int(rng.choice([0, 24, 48, 60, 96])),
    )


def some_sizes(rng: np.random.Generator, count: int) -> ParallelSizes:
    def some(*values: int) -> NDArray[np.int64]:
        return rng.choice(values, count)

    return ParallelSizes(
        tensor=some(1, 2, 3, 4, 6, 8, 14),
        pipeline=some(1, 1, 2, 3, 4, 6),
        virtual=some(1, 1, 2, 3),
        context=some(1, 1, 2, 3, 4),
        expert=some(1, 1, 2, 3, 4),
        expert_tensor=some(1, 1, 2, 4),
        data=some(1, 2, 3, 4, 6, 8),
        micro_batch=some(1, 2, 3, 4),
        instances=some(1, 2, 3),
        sequence_parallel=some(0, 1),
    )


def one_by_one(sizes: ParallelSizes) -> list[ParallelSizes]:
    columns = {one.name: getattr(sizes, one.name) for one in fields(sizes)}
    count = len(sizes.tensor)
    lists = {n: np.broadcast_to(column, count).tolist() for n, column in columns.items()}
    return [
        ParallelSizes(**dict(zip(lists, row, strict=True)))
        for row in zip(*lists.values(), strict=True)
    ]


class Drawn(NamedTuple):
    """Layouts of a module and of one next to it, as arrays and one by one."""

    facts: ModuleFacts
    between: PairFacts
    sizes: ParallelSizes
    other: ParallelSizes
    alone: list[ParallelSizes]
    others: list[ParallelSizes]


def drawn(count: int) -> Iterator[Drawn]:
    rng = np.random.default_rng(0)
    for number in range(MODULES):
        facts = some_facts(rng)
        batch = int(rng.choice([0, 24, 60]))
        between = PairFacts(MODES[number % 3], "m", "language", bool(number % 2), batch)
        sizes, other = some_sizes(rng, count), some_sizes(rng, count)
        yield Drawn(facts, between, sizes, other, one_by_one(sizes), one_by_one(other))


@functools.cache
def few() -> list[Drawn]:
    return list(drawn(60))


def wrong_rules(
    layouts: Iterable[Drawn], rules: Sequence[SizeRule], pairs: Sequence[PairRule]
) -> set[str]:
    """Return the rules of which an array of layouts says otherwise than brute force."""
    wrong = set()
    for facts, between, sizes, other, alone, others in layouts:
        for rule in rules:
            found = np.broadcast_to(rule.holds(sizes, facts), len(alone))
            if found.tolist() != [BRUTE[rule.name](facts, one) for one in alone]:
                wrong.add(rule.name)
        for pair in pairs:
            found = np.broadcast_to(pair.holds(sizes, other, between), len(alone))
            brute = BRUTE_PAIRS[pair.name]
            if found.tolist() != [brute(between, *two) for two in zip(alone, others, strict=True)]:
                wrong.add(f"pair {pair.name}")
    return wrong


def test_the_table_is_what_brute_force_finds() -> None:
    assert [rule.name for rule in RULES] == list(BRUTE)
    assert {rule.name for rule in PAIR_RULES} == set(BRUTE_PAIRS)
    assert wrong_rules(drawn(SIZES_OF_EACH), RULES, PAIR_RULES) == set()


@rows("rule", *RULES)
def test_a_planted_fault_in_a_rule_is_found(rule: SizeRule) -> None:
    for holds in (lambda sizes, facts: True, lambda sizes, facts: rule.holds(sizes, facts) == 0):
        assert wrong_rules(few(), [replace(rule, holds=holds)], ()) == {rule.name}


@rows("rule", *PAIR_RULES)
def test_a_planted_fault_in_a_rule_of_two_modules_is_found(rule: PairRule) -> None:
    for holds in (
        lambda sizes, other, facts: True,
        lambda sizes, other, facts: rule.holds(sizes, other, facts) == 0,
    ):
        assert wrong_rules(few(), (), [replace(rule, holds=holds)]) == {f"pair {rule.name}"}


NEIGHBOURS = [
    ("key heads", lambda sizes, facts: facts.kv_heads % sizes.tensor == 0),
    ("context", lambda sizes, facts: facts.seq % sizes.context == 0),
    ("layers", lambda sizes, facts: facts.layers % sizes.pipeline == 0),
    ("value biases", lambda sizes, facts: facts.value_biases % sizes.tensor == 0),
    ("inner layers", lambda sizes, facts: facts.layers >= facts.inner_layers * sizes.chunks),
    ("stage ranks", lambda sizes, facts: sizes.ranks % sizes.expert == 0),
    ("instances", lambda sizes, facts: sizes.data % sizes.instances == 0),
]


@rows("name, holds", *NEIGHBOURS)
def test_a_rule_that_is_almost_right_is_found(name: str, holds: Any) -> None:
    rule = next(one for one in RULES if one.name == name)
    assert wrong_rules(few(), [replace(rule, holds=holds)], ()) == {name}


def test_one_layout_reads_the_row_that_a_million_read() -> None:
    rng = np.random.default_rng(1)
    for _ in range(30):
        facts, sizes = some_facts(rng), some_sizes(rng, 20)
        for rule in RULES:
            together = np.broadcast_to(rule.holds(sizes, facts), 20).tolist()
            assert together == [bool(rule.holds(one, facts)) for one in one_by_one(sizes)]


def test_sentences_say_module_field_and_value_and_fixes_fix() -> None:
    rng = np.random.default_rng(2)
    seen = set()
    for _ in range(60):
        facts, sizes = some_facts(rng), some_sizes(rng, 20)
        for one, rule in itertools.product(one_by_one(sizes), RULES):
            if rule.holds(one, facts):
                continue
            problem = rule.problem(one, facts)
            seen.add(rule.name)
            assert problem.sentence.startswith(f"Module 'm': {problem.field} is ")
            assert problem.value is True or str(problem.value) in problem.sentence
            assert problem.sentence.endswith(".")
            if problem.fix and problem.fix["path"].startswith("model.module_architectures"):
                name = OF_NETWORK[problem.field]
                mended = replace(facts, **{name: problem.fix["value"] or 0})
                assert rule.holds(one, mended), problem
    assert seen == {rule.name for rule in RULES}


OF_NETWORK = {
    "num_attention_heads": "heads",
    "ffn_hidden_size": "ffn",
    "moe_shared_expert_intermediate_size": "shared_ffn",
    "vocab_size": "vocab",
    "num_layers": "layers",
    "num_moe_experts": "experts",
    "moe_ffn_hidden_size": "expert_ffn",
    "expert_tensor_parallel": "expert_biases",
    "tensor_parallel": "value_biases",
}


def test_megatron_refuses_what_the_table_refuses() -> None:
    """Its `TransformerConfig` states four of the rules itself."""
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    rng = np.random.default_rng(3)
    own = ("heads", "key heads", "layers", "expert biases")
    stated = [rule for rule in RULES if rule.name in own]
    outcomes = set()
    for _ in range(400):
        facts = replace(some_facts(rng), ends=bool(rng.integers(2)), extra=0)
        facts = replace(facts, expert_biases=facts.expert_biases and facts.experts > 0)
        (one,) = one_by_one(some_sizes(rng, 1))
        if not facts.ends:  # whose layers are dealt, and refused, where a stage is built
            one = replace(one, pipeline=1, virtual=1)
        if one.virtual > 1 and one.pipeline == 1:
            continue  # refused by `initialize_model_parallel`
        if facts.ends and one.pipeline * one.virtual > facts.layers:
            continue  # Megatron builds chunks without a layer
        if facts.ends and facts.layers % (one.pipeline * one.virtual) == 0:
            continue  # Megatron takes a split that changes nothing
        try:
            TransformerConfig(
                num_layers=facts.layers,
                hidden_size=facts.heads * 8,
                num_attention_heads=facts.heads,
                num_query_groups=facts.kv_heads,
                tensor_model_parallel_size=one.tensor,
                pipeline_model_parallel_size=one.pipeline,
                virtual_pipeline_model_parallel_size=one.virtual if one.virtual > 1 else None,
                pipeline_dtype=torch.float32,
                account_for_embedding_in_pipeline_split=facts.ends,
                account_for_loss_in_pipeline_split=facts.ends,
                num_moe_experts=facts.experts or None,
                expert_tensor_parallel_size=one.expert_tensor,
                add_bias_linear=facts.expert_biases,
            )
            accepted = True
        except (ValueError, AssertionError) as error:
            accepted, why = False, str(error)
        holds = all(rule.holds(one, facts) for rule in stated)
        outcomes.add(accepted)
        assert accepted == holds, (one, facts, None if accepted else why)
    assert outcomes == {True, False}
