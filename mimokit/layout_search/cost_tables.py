"""Terms of every candidate of every module, computed once, to be combined afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimokit.architecture.modules import Module
from mimokit.config.errors import ConfigError, Problem
from mimokit.config.sizes import Numbers, ParallelSizes
from mimokit.layout_search.candidates import Candidates, bounded, candidates, numbered, search_facts
from mimokit.layout_search.space import axes_of
from mimokit.layout_search.task import SearchTask
from mimokit.prediction.layout import Layout, connected
from mimokit.prediction.memory import total_bytes
from mimokit.prediction.module_costs import (
    EncoderCost,
    LanguageCost,
    ModuleLoad,
    encoder_costs,
    language_cost,
    loaded_ends,
)
from mimokit.prediction.step_time import TimeBreakdown
from mimokit.prediction.step_time.breakdown import StageTime
from mimokit.units import counted

Index = NDArray[Any]


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
class Flows:
    """Kinds of language candidates that are the same to any other module.

    Attributes:
        first: a candidate of each kind.
        of: the kind of each candidate.
    """

    first: NDArray[np.intp]
    of: NDArray[np.intp]


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

    @cached_property
    def ranks(self) -> NDArray[np.int64]:
        """The ranks of each language candidate."""
        return np.asarray(self.language.sizes.ranks)

    @cached_property
    def flows(self) -> Flows:
        """The kinds of language candidates, by stages, chunks, replicas and samples."""
        sizes = self.language.sizes
        number = numbered((sizes.pipeline, sizes.virtual, sizes.data, sizes.micro_batch))
        return Flows(*np.unique(number, return_index=True, return_inverse=True)[1:])

    def beside(
        self, languages: Index, chosen: NDArray[np.int64]
    ) -> tuple[LanguageCost, list[EncoderCost]]:
        """Return the costs of language candidates, with decoders, and of encoders.

        Args:
            chosen: [other modules, …], candidates of each that broadcast against the languages.
        """
        costs = [self._other(*each, languages) for each in enumerate(chosen)]
        encoders = [cost for cost in costs if isinstance(cost, EncoderCost)]
        decoders = tuple(cost for cost in costs if isinstance(cost, LanguageCost))
        language: LanguageCost = self._takers[0](languages)
        return replace(language, decoders=decoders) if decoders else language, encoders

    def _other(
        self, which: int, candidates: NDArray[np.int64], languages: Index
    ) -> EncoderCost | LanguageCost:
        sizes, first = self.other_sizes[which], candidates * self.steps
        index = first + self.step[languages]
        samples = np.asarray(sizes.micro_batch)[index]
        timed: EncoderCost | LanguageCost = self._takers[1 + which](index)
        return replace(timed, sizes=replace(sizes.take(first), micro_batch=samples))

    def inside_of(self, languages: Index) -> tuple[LanguageCost, list[EncoderCost]]:
        """Return the costs of language candidates, and of all encoders in their first stages."""
        language, *inside = (
            self._takers[each](languages) for each in (0, *range(-len(self.inside), 0))
        )
        return language, inside

    @cached_property
    def _takers(self) -> tuple[Taker, ...]:
        return tuple(map(_taker_of, (self.language_costs, *self.other_costs, *self.inside)))


def make_tables(task: SearchTask, language: Candidates, others: tuple[Candidates, ...]) -> Tables:
    """Compute the costs of all candidates."""
    samples = np.asarray(language.sizes.micro_batch * language.sizes.data)
    distinct, step = np.unique(samples, return_inverse=True)
    separate = {other.facts.name: _with_samples(other.sizes, distinct) for other in others}
    model, workload, system, name = task.model, task.workload, task.system, task.language.name
    modules = {**separate, name: language.sizes}
    layout = connected(Layout("homogeneous", modules, name), model)
    apart = replace(layout, mode="colocated")
    placed = dict.fromkeys(separate, language.sizes.in_first_stage)
    within = replace(layout, modules={**modules, **placed})
    with np.errstate(divide="ignore", invalid="ignore"):  # candidates that are never chosen
        costs = language_cost(model, layout, workload, system)
        encoders = encoder_costs(model, apart, workload, system)
        shares = "homogeneous" in task.modes
        inside = encoder_costs(model, within, workload, system) if shares else []
    alone: list[EncoderCost | LanguageCost] = [*encoders, *map(collapsed, costs.decoders)]
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


Taker = Callable[[Index], Any]


def taker(value: Any) -> Taker | None:
    """Return how to take entries of all arrays inside a record; None where it has none.

    What stays is found once, as a search takes thousands of times.
    """
    if isinstance(value, ModuleLoad):
        return None  # a search does not ask what its costs follow from
    if isinstance(value, np.ndarray):
        return partial(value.take, axis=0) if value.ndim else None
    if isinstance(value, tuple):
        return _of_parts(dict(enumerate(value)), lambda parts: tuple(parts.values()))
    if isinstance(value, Mapping):
        return _of_parts(value, dict)
    if is_dataclass(value) and not isinstance(value, type):
        kind: Any = type(value)
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return _of_parts(parts, lambda parts: kind(**parts))
    return None


def _taker_of(value: Any) -> Taker:
    return taker(value) or (lambda _: value)


def _of_parts(parts: Mapping[Any, Any], made: Callable[[Mapping[Any, Any]], Any]) -> Taker | None:
    takers = {name: take for name, part in parts.items() if (take := taker(part)) is not None}
    if not takers:
        return None
    return lambda index: made({**parts, **{name: take(index) for name, take in takers.items()}})


def enumerate_modules(
    task: SearchTask,
) -> tuple[Candidates, tuple[Candidates, ...], tuple[str, ...]]:
    """Return candidates of the language model and of the others, and sentences of what was cut."""
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
    language = fitting_alone(task, per_module[0])
    others, fewer = bounded(language, tuple(per_module[1:]))
    return language, others, cut + fewer


def fitting_alone(task: SearchTask, language: Candidates) -> Candidates:
    """Return language candidates without those that are too large without any other module.

    They are dropped once for all combinations, unless that leaves none: then the leanest
    combination is still to be found.
    """
    module = task.language
    layout = Layout("homogeneous", {module.name: language.sizes})
    *_, (first, last) = loaded_ends(module, task.model, layout, task.workload, task.system)
    fits = np.maximum(total_bytes(first), total_bytes(last)) <= task.memory_limit
    fits = np.broadcast_to(fits, (language.count,))
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
