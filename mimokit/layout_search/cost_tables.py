"""Terms of every candidate of every module, computed once, to be combined afterwards."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimokit.architecture.modules import EncoderBranch, LanguageModel
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
        encoders: candidates of each encoder on its own ranks, and of size 1 in a pipeline where it
            shares them.
        samples: samples of a global micro-batch, of each language candidate.
        step: position of these samples in the encoders' costs.
        encoder_costs: per encoder the costs of candidate i and step k at i times steps + k, without
            their sizes.
        encoder_sizes: of these; those of a candidate differ by their samples alone.
        steps: how many numbers of samples there are.
        inside: costs of the encoders in the first stage of each language candidate.
    """

    language: Candidates
    encoders: tuple[Candidates, ...]
    samples: NDArray[np.int64]
    step: NDArray[np.int64]
    language_costs: LanguageCost
    encoder_costs: tuple[EncoderCost, ...]
    encoder_sizes: tuple[ParallelSizes, ...]
    steps: int
    inside: tuple[EncoderCost, ...]
    _languages: dict[tuple[int, int], LanguageCost] = field(default_factory=dict)

    def encoder(self, which: int, candidate: int, languages: slice) -> EncoderCost:
        """Return the costs of one encoder candidate next to some language candidates."""
        sizes, first = self.encoder_sizes[which], candidate * self.steps
        index = first + self.step[languages]
        samples = np.asarray(sizes.micro_batch)[index]
        timed: EncoderCost = taken(self.encoder_costs[which], index)
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


def make_tables(task: SearchTask, language: Candidates, encoders: tuple[Candidates, ...]) -> Tables:
    """Compute the costs of all candidates."""
    samples = np.asarray(language.sizes.micro_batch * language.sizes.data)
    distinct, step = np.unique(samples, return_inverse=True)
    names = [candidates.facts.name for candidates in encoders]
    separate = {
        name: _with_samples(candidates.sizes, distinct)
        for name, candidates in zip(names, encoders, strict=True)
    }
    shared = dict.fromkeys(names, in_first_stage(language.sizes))
    costs, encoder_costs = all_costs(task, separate, language.sizes)
    inside = all_costs(task, shared, language.sizes)[1] if encoders else []
    # Encoders repeat their items only inside of a pipeline.
    alone = [replace(cost, sizes=ParallelSizes(), repeated=None) for cost in encoder_costs]
    return Tables(
        language=language,
        encoders=encoders,
        samples=samples,
        step=step,
        language_costs=collapsed(costs),
        encoder_costs=tuple(alone),
        encoder_sizes=tuple(cost.sizes for cost in encoder_costs),
        steps=len(distinct),
        inside=tuple(inside),
    )


def all_costs(
    task: SearchTask, encoders: Mapping[str, ParallelSizes], language: ParallelSizes
) -> tuple[LanguageCost, list[EncoderCost]]:
    """Return the costs of all sizes of all modules."""
    layout = Layout("homogeneous", {**encoders, task.language.name: language}, task.language.name)
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
    """Return candidates of the language model and of the encoders, and sentences of what was cut.

    Raises:
        ConfigError: a module has no valid sizes at all.
    """
    cut: tuple[str, ...] = ()
    per_module: list[Candidates] = []
    modules: tuple[LanguageModel | EncoderBranch, ...] = (task.language, *task.branches)
    for module in modules:
        facts = search_facts(task, module)
        axes, shortened = axes_of(facts, task.constraints, task.hardware.domain_ranks)
        cut += shortened
        per_module.append(candidates(facts, axes))
        if not per_module[-1].count:
            raise _no_sizes(per_module[-1])
    language = fitting_alone(task, per_module[0], tuple(per_module[1:]))
    encoders, fewer = bounded(language, tuple(per_module[1:]))
    return language, encoders, cut + fewer


def fitting_alone(
    task: SearchTask, language: Candidates, encoders: tuple[Candidates, ...]
) -> Candidates:
    """Return language candidates without those that are too large without any encoder.

    They are dropped once for all combinations, unless that leaves none: then the leanest
    combination is still to be found.
    """
    anywhere = {encoder.facts.name: encoder.at(0) for encoder in encoders}
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
