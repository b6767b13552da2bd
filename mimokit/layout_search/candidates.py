"""All parallel sizes of one module that no rule forbids, and how many each rule forbade.

In addition to the rules that make a layout valid (`mimokit.config.rules.module_rules`) a search
has three more: the number of GPUs, recomputation that saves nothing, and whole rounds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mimokit.architecture.modules import Module
from mimokit.config.errors import Problem
from mimokit.config.rules.facts import ModuleFacts
from mimokit.config.rules.module_rules import CHUNKS, RULES, SizeRule, rounds_are_whole
from mimokit.config.rules.pair_rules import PairRule
from mimokit.config.rules.writing import tells
from mimokit.config.sizes import RECOMPUTE_SELECTIVE, Numbers, ParallelSizes
from mimokit.layout_search.constraints import DIMENSIONS
from mimokit.layout_search.space import Axes
from mimokit.layout_search.task import SearchTask
from mimokit.prediction.validity import facts_of

MOST_LAYOUTS = 40_000_000
"""Combinations of module sizes that a search evaluates at most, about five seconds' worth."""

# Runs of mimokit take any number, but what a search chooses is for Megatron-Core, whose chunks take
# micro-batches in rounds of as many as there are stages.
_ROUNDS = "interleaved stages need micro-batches in multiples of the stages"


def _rounds_hold(batch: Numbers, language: ParallelSizes, sizes: ParallelSizes) -> Numbers:
    count = batch // (language.data * language.micro_batch)
    return rounds_are_whole(count, sizes)


def _rounds_problem(values: Callable[..., tuple[Numbers]]) -> Callable[..., Problem]:
    return tells(
        CHUNKS,
        ", and Megatron-Core takes micro-batches of interleaved chunks in multiples of the "
        "{sizes.pipeline} stages, which the {0} of a step (data.num_microbatches) are not; change "
        "that, or leave the field out.",
        None,
        values=values,
    )


ROUNDS = SizeRule(
    "rounds",
    _ROUNDS,
    ("pipeline", "virtual", "data", "micro_batch"),
    lambda sizes, facts: _rounds_hold(facts.global_batch_size * facts.is_language, sizes, sizes),
    _rounds_problem(
        lambda sizes, facts: (facts.global_batch_size // (sizes.data * sizes.micro_batch),)
    ),
    unless=("chunks", "batch"),
)
ROUNDS_OF_ENCODER = PairRule(
    "rounds",
    _ROUNDS,
    ("pipeline", "virtual", "data", "micro_batch"),
    lambda sizes, other, facts: _rounds_hold(facts.global_batch_size, other, sizes),
    _rounds_problem(
        lambda sizes, other, facts: (facts.global_batch_size // (other.data * other.micro_batch),)
    ),
)
SEARCH_RULES = (
    SizeRule(
        "GPUs",
        "more GPUs than there are",
        ("tensor", "context", "pipeline", "data"),
        lambda sizes, facts: sizes.ranks <= facts.gpus,
        tells(
            "data_parallel",
            "it takes {sizes.ranks} GPUs and there are {facts.gpus}; choose smaller sizes.",
        ),
    ),
    SizeRule(
        "recompute",
        "flash attention leaves selective recomputation nothing to save",
        ("recompute",),
        lambda sizes, facts: (sizes.recompute != RECOMPUTE_SELECTIVE) | (not facts.fused_attention),
        tells(
            "recompute_granularity",
            "recompute is selective, which saves nothing with flash attention; choose none or "
            "full.",
        ),
    ),
    *RULES,
    ROUNDS,
)
"""The rules of a search, in the order in which they are counted."""


@dataclass(frozen=True)
class Candidates:
    """Sizes of one module.

    Attributes:
        sizes: one array entry per candidate, fewest ranks first.
        dropped: rule -> points of the grid that it forbade.
    """

    facts: ModuleFacts
    sizes: ParallelSizes
    dropped: Mapping[str, int]

    @property
    def count(self) -> int:
        """Candidates."""
        return int(np.size(self.sizes.tensor))

    def at(self, index: int) -> ParallelSizes:
        """Return one candidate as plain numbers."""
        picked = {field: int(getattr(self.sizes, field)[index]) for field in DIMENSIONS.values()}
        return replace(self.sizes, **picked)

    def take(self, index: object) -> Candidates:
        """Return some of the candidates."""
        return replace(self, sizes=self.sizes.take(index))


def numbered(columns: Iterable[Numbers]) -> NDArray[np.int64]:
    """Return a number per row, which ascends with the columns, the first one first.

    Beyond 63 bits two rows may have the same number by chance.
    """
    number = np.int64(0)
    for column in columns:
        number = number * (np.max(column, initial=0) + 1) + column
    return np.asarray(number, dtype=np.int64)


def candidates(facts: ModuleFacts, axes: Axes) -> Candidates:
    """Enumerate a grid, dimension by dimension, dropping what cannot become valid any more.

    A point dropped early counts for all points that it would have become, so the counts are those
    of the whole grid.
    """
    columns: dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
    dropped: Counter[str] = Counter()
    rows = 1
    for dimension, field in DIMENSIONS.items():
        values = np.array(axes[dimension], dtype=np.int64)
        columns = {name: np.repeat(column, len(values)) for name, column in columns.items()}
        columns[field] = np.tile(values, rows)
        left = math.prod(len(axes[name]) for name in _after(dimension))
        for rule in SEARCH_RULES:
            if _decided_at(rule) != dimension:
                continue
            holds = np.broadcast_to(
                rule.holds(ParallelSizes(**columns), facts), columns[field].shape
            )
            dropped[rule.reason] += int(np.count_nonzero(~holds)) * left
            columns = {name: column[holds] for name, column in columns.items()}
        rows = len(columns[field])
    sizes = ParallelSizes(**columns)
    order = np.argsort(sizes.ranks, kind="stable")
    return Candidates(facts, sizes.take(order), {k: n for k, n in dropped.items() if n})


def search_facts(task: SearchTask, module: Module) -> ModuleFacts:
    """Return what the rules of a search read of a module.

    The sequences of encoders are among it: a search does not try to cut them unevenly.
    """
    facts = facts_of(task.model, module, task.workload)
    seq = task.workload.input_of(module).length
    return replace(facts, seq=seq, gpus=task.gpus, fused_attention=task.software.fused_attention)


def _decided_at(rule: SizeRule) -> str | None:
    """Return the last dimension that a rule reads, in the order of the search; None: it has one."""
    read = [name for name, field in DIMENSIONS.items() if field in rule.reads]
    return read[-1] if read else None


def _after(dimension: str) -> list[str]:
    names = list(DIMENSIONS)
    return names[names.index(dimension) + 1 :]


def bounded(
    language: Candidates, encoders: tuple[Candidates, ...]
) -> tuple[tuple[Candidates, ...], tuple[str, ...]]:
    """Return encoders with at most as many candidates as can be combined, and what was cut.

    The plainest stay: one optimizer instance, no pipeline, no chunks, no context parallelism, no
    recomputation before those with; of equally plain ones an even choice over the ranks.
    """
    counts = [encoder.count for encoder in encoders]
    while math.prod(counts) * language.count > MOST_LAYOUTS and max(counts, default=1) > 1:
        largest = counts.index(max(counts))
        counts[largest] = max(1, counts[largest] // 2)
    kept, cut = [], []
    for encoder, count in zip(encoders, counts, strict=True):
        kept.append(encoder if count == encoder.count else plainest(encoder, count))
        if count < encoder.count:
            cut.append(
                f"Module '{encoder.facts.name}': {count:,} of its {encoder.count:,} layouts were "
                f"combined with the {language.count:,} of the language model, the plainest first; "
                "narrow the space with constraints to see all."
            )
    return tuple(kept), tuple(cut)


def plainest(encoder: Candidates, count: int) -> Candidates:
    """Return the `count` plainest candidates, in the order they had."""
    sizes = encoder.sizes
    extras = (sizes.instances, sizes.pipeline, sizes.virtual, sizes.context)
    order = np.argsort(sum(map(np.log2, extras)) + sizes.recompute, kind="stable")
    return encoder.take(np.sort(order[:count]))
