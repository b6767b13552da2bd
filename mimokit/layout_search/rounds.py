"""Interleaved chunks take micro-batches in rounds of as many as there are stages in Megatron-Core.

Runs of mimokit take any number, but what a search chooses is for Megatron-Core.
"""

from __future__ import annotations

from mimokit.config.errors import Problem
from mimokit.config.rules.facts import ModuleSizes, Numbers, size_problem
from mimokit.config.rules.module_rules import CHUNKS, SizeRule, rounds_are_whole
from mimokit.config.rules.pair_rules import PairRule

_REASON = "interleaved stages need micro-batches in multiples of the stages"


def _hold(batch: Numbers, language: ModuleSizes, sizes: ModuleSizes) -> Numbers:
    count = batch // (language.data * language.micro_batch)
    return rounds_are_whole(count, sizes)


def _problem(name: str, batch: int, language: ModuleSizes, sizes: ModuleSizes) -> Problem:
    count = batch // (language.data * language.micro_batch)
    what = (
        "and Megatron-Core takes micro-batches of interleaved chunks in multiples of the "
        f"{sizes.pipeline} stages, which the {count} of a step (data.num_microbatches) are not; "
        "change that, or leave the field out."
    )
    return size_problem(name, CHUNKS, sizes.virtual, what, None)


ROUNDS = SizeRule(
    "rounds",
    _REASON,
    ("pipeline", "virtual", "data", "micro_batch"),
    lambda sizes, facts: _hold(facts.global_batch_size * facts.is_language, sizes, sizes),
    lambda sizes, facts: _problem(facts.name, facts.global_batch_size, sizes, sizes),
    unless=("chunks", "batch"),
)
ROUNDS_OF_ENCODER = PairRule(
    "rounds",
    _REASON,
    ("pipeline", "virtual", "data", "micro_batch"),
    lambda sizes, other, facts: _hold(facts.global_batch_size, other, sizes),
    lambda sizes, other, facts: _problem(facts.name, facts.global_batch_size, other, sizes),
)
