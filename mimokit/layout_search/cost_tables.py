"""Terms of every candidate of every module, computed once, to be combined afterwards."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimokit.architecture.modules import Module
from mimokit.architecture.parallel_sizes import Numbers, ParallelSizes
from mimokit.config.errors import ConfigError, Problem
from mimokit.layout_search.candidates import Candidates, bounded, candidates, search_facts
from mimokit.layout_search.space import axes_of
from mimokit.layout_search.task import SearchTask
from mimokit.prediction import Layout, costs_of
from mimokit.prediction.layout import in_first_stage
from mimokit.prediction.memory import total_bytes
from mimokit.prediction.module_costs import EncoderCost, LanguageCost
from mimokit.prediction.step_time import TimeBreakdown
from mimokit.prediction.step_time.breakdown import StageTime
from mimokit.units import counted

Index = int | slice | NDArray[Any]


ALONE_TOO_LARGE = "more memory than may be planned on a GPU, without any encoder"


@dataclass(frozen=True)
class TotalTime(TimeBreakdown):
    """Seconds whose parts were added up, so that combining modules adds one array, not seven."""

    seconds: Numbers = 0.0

    @property
    def total(self) -> Numbers:
        """All seconds."""
        return self.seconds


@dataclass(frozen=True)
class Tables:
    """Candidates and their costs.

    Attributes:
        others: candidates of each other module on its own ranks, and of size 1 in a pipeline where
            it shares them: of encoders, then of decoders.
        samples: samples of a global micro-batch, of each language candidate.
        step: position of these samples in the encoders' costs.
        other_costs: per other module the costs of candidate i and step k at i times steps + k,
            without their sizes.
        other_sizes: of these; those of a candidate differ by their samples alone.
        steps: how many numbers of samples there are.
        inside: costs of the encoders in the first stage of each language candidate.
    """

    language: Candidates
    others: tuple[Candidates, ...]
    samples: NDArray[np.int64]
    step: NDArray[np.int64]
    language_costs: LanguageCost
    other_costs: tuple[EncoderCost | LanguageCost, ...]
    other_sizes: tuple[ParallelSizes, ...]
    steps: int
    inside: tuple[EncoderCost, ...]
    _languages: dict[tuple[int, int], LanguageCost] = field(default_factory=dict)

    def beside(
        self, chosen: Sequence[int], languages: slice
    ) -> tuple[LanguageCost, list[EncoderCost]]:
        """Return the costs of some language candidates, with decoders, and of encoders."""
        costs = [self._other(which, number, languages) for which, number in enumerate(chosen)]
        encoders = [cost for cost in costs if isinstance(cost, EncoderCost)]
        decoders = tuple(cost for cost in costs if isinstance(cost, LanguageCost))
        language = self.languages(languages)
        return replace(language, decoders=decoders) if decoders else language, encoders

    def _other(self, which: int, candidate: int, languages: slice) -> EncoderCost | LanguageCost:
        sizes, first = self.other_sizes[which], candidate * self.steps
        index = first + self.step[languages]
        samples = np.asarray(sizes.micro_batch)[index]
        timed: EncoderCost | LanguageCost = taken(self.other_costs[which], index)
        return replace(timed, sizes=replace(sizes.take(first), micro_batch=samples))

    def inside_of(self, which: slice) -> list[EncoderCost]:
        """Return the costs of all encoders in the first stage of some language candidates."""
        return [taken(costs, which) for costs in self.inside]

    def languages(self, which: slice) -> LanguageCost:
        """Return the costs of some language candidates; many choices of encoders have the same."""
        ends = which.start, which.stop
        if ends not in self._languages:
            self._languages[ends] = taken(self.language_costs, which)
        return self._languages[ends]


def make_tables(task: SearchTask, language: Candidates, others: tuple[Candidates, ...]) -> Tables:
    """Compute the costs of all candidates."""
    samples = np.asarray(language.sizes.micro_batch * language.sizes.data)
    distinct, step = np.unique(samples, return_inverse=True)
    names = [candidates.facts.name for candidates in others]
    separate = {
        name: _with_samples(candidates.sizes, distinct)
        for name, candidates in zip(names, others, strict=True)
    }
    shared = dict.fromkeys(names, in_first_stage(language.sizes))
    costs, encoders = all_costs(task, separate, language.sizes)
    shares = task.others and "homogeneous" in task.modes
    inside = all_costs(task, shared, language.sizes)[1] if shares else []
    # Encoders repeat their items only inside of a pipeline.
    alone: list[EncoderCost | LanguageCost] = [replace(cost, repeated=None) for cost in encoders]
    alone += map(collapsed, costs.decoders)
    return Tables(
        language=language,
        others=others,
        samples=samples,
        step=step,
        language_costs=replace(collapsed(costs), decoders=()),
        other_costs=tuple(replace(cost, sizes=ParallelSizes()) for cost in alone),
        other_sizes=tuple(cost.sizes for cost in alone),
        steps=len(distinct),
        inside=tuple(inside),
    )


def all_costs(
    task: SearchTask, others: Mapping[str, ParallelSizes], language: ParallelSizes
) -> tuple[LanguageCost, list[EncoderCost]]:
    """Return the costs of all sizes of all modules, each with the memory that it needs alone."""
    layout = Layout("homogeneous", {**others, task.language.name: language}, task.language.name)
    with np.errstate(divide="ignore", invalid="ignore"):  # candidates that are never chosen
        return costs_of(task.model, layout, task.workload, task.system)


def _with_samples(sizes: ParallelSizes, samples: NDArray[np.int64]) -> ParallelSizes:
    """Return every candidate with every number of samples, of which each replica takes a share."""
    count = len(samples)
    repeated = sizes.take(np.repeat(np.arange(np.size(sizes.tensor)), count))
    each = np.tile(samples, np.size(sizes.tensor)) / repeated.data
    return replace(repeated, micro_batch=each)


def collapsed(costs: LanguageCost) -> LanguageCost:
    """Return costs whose parts are added up, as combining modules asks for totals only."""

    def stage(time: StageTime) -> StageTime:
        return StageTime(
            TotalTime(seconds=time.forward.total), TotalTime(seconds=time.backward.total)
        )

    first, middle, last = costs.step.stages
    step = replace(
        costs.step,
        work=TotalTime(seconds=costs.step.work.total),
        stages=(stage(first), stage(middle), stage(last)),
        weights=0.0,
    )
    return replace(
        costs,
        step=step,
        first={"all": total_bytes(costs.first)},
        last={"all": total_bytes(costs.last)},
    )


def taken(value: Any, index: Index) -> Any:
    """Return the entries of all arrays inside a record; single numbers stay."""
    if isinstance(value, np.ndarray):
        return value[index] if value.ndim else value
    if is_dataclass(value) and not isinstance(value, type):
        kind: Any = type(value)
        return kind(**{name: taken(getattr(value, name), index) for name in _field_names(kind)})
    if isinstance(value, Mapping):
        return {name: taken(part, index) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(taken(part, index) for part in value)
    return value


@functools.cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def enumerate_modules(
    task: SearchTask,
) -> tuple[Candidates, tuple[Candidates, ...], tuple[str, ...]]:
    """Return candidates of the language model and of the others, and sentences of what was cut.

    Raises:
        ConfigError: a module has no valid sizes at all.
    """
    cut: tuple[str, ...] = ()
    per_module: list[Candidates] = []
    modules: tuple[Module, ...] = (task.language, *task.others)
    for module in modules:
        facts = search_facts(task, module)
        axes, shortened = axes_of(facts, task.constraints, task.hardware.domain_ranks)
        cut += shortened
        per_module.append(candidates(facts, axes))
        if not per_module[-1].count:
            raise _no_sizes(per_module[-1])
    language = fitting_alone(task, per_module[0], tuple(per_module[1:]))
    others, fewer = bounded(language, tuple(per_module[1:]))
    return language, others, cut + fewer


def fitting_alone(
    task: SearchTask, language: Candidates, others: tuple[Candidates, ...]
) -> Candidates:
    """Return language candidates without those that are too large without any other module.

    They are dropped once for all combinations, unless that leaves none: then the leanest
    combination is still to be found.
    """
    anywhere = {other.facts.name: other.at(0) for other in others}
    costs, _ = all_costs(task, anywhere, language.sizes)
    fits = np.broadcast_to(costs.memory <= task.memory_limit, (language.count,))
    if fits.all() or not fits.any():
        return language
    dropped = {**language.dropped, ALONE_TOO_LARGE: int(np.count_nonzero(~fits))}
    return replace(language.take(fits), dropped=dropped)


def _no_sizes(module: Candidates) -> ConfigError:
    facts = module.facts
    reasons = sorted(module.dropped.items(), key=lambda item: -item[1])[:3]
    sentence = (
        f"Module '{facts.name}': none of the parallel sizes tried is valid on "
        f"{counted(facts.gpus, 'GPU')}; most were dropped because of: "
        f"{'; '.join(f'{reason} ({count:,} times)' for reason, count in reasons)}."
    )
    return ConfigError([Problem(facts.name, "sizes", None, sentence)])
