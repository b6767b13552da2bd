"""Evaluate all combinations of module sizes, and remember the best ones."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.config.rules.facts import ModuleSizes, PairFacts
from mimokit.config.rules.pair_rules import REPLICAS, SAME_STAGES, SAMPLES
from mimokit.config.runtime import DeploymentMode
from mimokit.layout_search.candidates import ROUNDS_OF_ENCODER, SEARCH_RULES, Candidates
from mimokit.layout_search.combinations import allowed
from mimokit.layout_search.constraints import MODES, score
from mimokit.layout_search.cost_tables import Tables
from mimokit.layout_search.pareto import lower_edges
from mimokit.layout_search.task import SearchTask, passes_of
from mimokit.prediction import layout_cost
from mimokit.prediction.deployment_modes import colocated
from mimokit.prediction.layout import in_first_stage
from mimokit.prediction.module_costs import EncoderCost, LanguageCost

TOO_MUCH_MEMORY = "more memory than may be planned on a GPU"
TOO_SLOW = "a step takes longer than allowed"
REFUSED = "refused with what a module or the run has"

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class LayoutBatch:
    """Layouts that are evaluated together: one choice of others next to many language candidates.

    Attributes:
        others: candidate of each other module; empty where encoders follow the language model.
    """

    mode: DeploymentMode
    languages: slice
    others: tuple[int, ...] = ()


@dataclass(frozen=True)
class Kept:
    """Layouts worth remembering, one array entry each.

    Attributes:
        seconds: of a step, by the closed forms.
        memory: bytes of the fullest rank.
        mode: position in `MODES`.
        others: candidates of the other modules, one column each; -1 where they follow.
    """

    seconds: NDArray[np.float64]
    memory: NDArray[np.float64]
    gpus: NDArray[np.float64]
    score: NDArray[np.float64]
    mode: NDArray[np.int64]
    language: NDArray[np.int64]
    others: NDArray[np.int64]


@dataclass
class Scan:
    """What a search has seen so far.

    Attributes:
        keep: how many layouts of every batch are remembered next to its front.
        dropped: reason -> layouts that were dropped for it.
        fitting: of them, those that fit and are quick enough.
        leanest: least memory seen, with its batch and language candidate.
        quickest: least seconds of those that fit in memory.
    """

    task: SearchTask
    tables: Tables
    keep: int
    evaluated: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    fitting: int = 0
    best: float | None = None
    leanest: tuple[float, LayoutBatch | None, int] = (np.inf, None, 0)
    quickest: float = np.inf
    _kept: list[Kept] = field(default_factory=list)
    _masks: dict[tuple[str, str], Mask] = field(default_factory=dict)

    def see(self, batch: LayoutBatch) -> None:
        """Evaluate a batch."""
        valid = self._valid(batch)
        chosen = np.flatnonzero(valid)
        if not len(chosen):
            return
        self.evaluated += len(chosen)
        seconds, memory = (values[chosen] for values in self._outcome(batch, valid))
        self._remember_leanest(batch, memory, chosen)
        limit, slowest = self.task.memory_limit, self.task.constraints.most_seconds
        fits = memory <= limit
        quick = np.full(len(chosen), True) if slowest is None else seconds <= slowest
        self.dropped[TOO_MUCH_MEMORY] += int(np.count_nonzero(~fits))
        self.dropped[TOO_SLOW] += int(np.count_nonzero(fits & ~quick))
        self.quickest = min(self.quickest, float(seconds[fits].min(initial=np.inf)))
        good = np.flatnonzero(fits & quick)
        self._remember(batch, chosen[good], seconds[good], memory[good])

    @property
    def kept(self) -> Kept:
        """Everything remembered."""
        columns = [[getattr(rows, name) for rows in self._kept] for name in vars(self._kept[0])]
        return Kept(*(np.concatenate(column) for column in columns))

    def _valid(self, batch: LayoutBatch) -> Mask:
        tables, which = self.tables, batch.languages
        valid = np.full(which.stop - which.start, True)
        around = tables.language
        self._keep(valid, self._allowed(batch.mode, around, around)[which], REFUSED)
        if batch.mode == "homogeneous":
            for encoder in tables.others:
                self._keep(valid, self._allowed(batch.mode, encoder, around)[which], REFUSED)
                for reason, holds in _shared_rules(tables, encoder):
                    self._keep(valid, holds[which], reason)
            return valid
        samples = self.task.workload.global_batch_size
        facts = PairFacts(batch.mode, "", "", global_batch_size=samples)
        language = _some_sizes(tables.language.sizes, which)
        chosen: dict[str, ModuleSizes] = {}
        for other, candidate in zip(tables.others, batch.others, strict=True):
            sizes = _some_sizes(other.sizes, candidate)
            self._keep(valid, self._allowed(batch.mode, other, other)[candidate], REFUSED)
            for rule in (SAME_STAGES, REPLICAS, SAMPLES, ROUNDS_OF_ENCODER):
                holds = np.asarray(rule.holds(sizes, language, facts))
                self._keep(valid, holds, rule.reason)
            chosen[other.facts.name] = sizes
        for first, second in self._pairs_of_others(batch.mode, tuple(chosen)):
            if not REPLICAS.holds(chosen[first], chosen[second], facts):
                self._keep(valid, np.full(valid.shape, False), REPLICAS.reason)
        return valid

    def _pairs_of_others(
        self, mode: DeploymentMode, names: tuple[str, ...]
    ) -> Iterable[tuple[str, str]]:
        if mode == "colocated":
            return itertools.combinations(names, 2)
        feeds, language = self.task.feeds, self.task.language.name
        return ((name, to) for name in names for to in feeds[name] if to != language)

    def _allowed(self, mode: DeploymentMode, module: Candidates, sized: Candidates) -> Mask:
        key = mode, module.facts.name
        if key not in self._masks:
            part = self.task.parts.get(module.facts.name)
            everything = np.full(sized.count, True)
            self._masks[key] = everything if part is None else allowed(part, mode, sized.sizes)
        return self._masks[key]

    def _keep(self, valid: Mask, holds: Mask, reason: str) -> None:
        self.dropped[reason] += int(np.count_nonzero(valid & ~holds))
        valid &= holds

    def _outcome(
        self, batch: LayoutBatch, valid: Mask
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        tables, which = self.tables, batch.languages
        language, encoders = tables.beside(batch.others, which)
        if batch.mode == "homogeneous":
            encoders = tables.inside_of(which)
        with np.errstate(divide="ignore", invalid="ignore"):  # of pairs that are not valid
            outcome = layout_cost(
                batch.mode, language, encoders, self.task.workload, self.task.system
            )
        shape = (which.stop - which.start,)
        seconds = np.broadcast_to(outcome.seconds, shape)
        memory = np.broadcast_to(outcome.memory, shape)
        if batch.mode != "colocated" or self.task.workload.encoder_microbatches is not None:
            return seconds, memory
        return self._in_passes(language, encoders, seconds, memory, valid)

    def _in_passes(
        self,
        language: LanguageCost,
        encoders: list[EncoderCost],
        seconds: NDArray[np.float64],
        memory: NDArray[np.float64],
        valid: Mask,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        # More passes keep fewer activations, and take longer; see `SearchTask.predict`.
        count = language.micro_batches
        for passes in passes_of(int(np.max(count))):
            over = valid & (memory > self.task.memory_limit)
            if not over.any():
                break
            at_once = np.ceil(count / passes)
            with np.errstate(divide="ignore", invalid="ignore"):
                task = self.task
                cost = colocated(language, encoders, task.workload, task.system, at_once)
            seconds = np.where(over, cost.seconds, seconds)
            memory = np.where(over, cost.memory, memory)
        return seconds, memory

    def _remember_leanest(
        self, batch: LayoutBatch, memory: NDArray[np.float64], chosen: NDArray[np.intp]
    ) -> None:
        least = int(np.argmin(memory))
        if memory[least] < self.leanest[0]:
            candidate = int(chosen[least]) + batch.languages.start
            self.leanest = (float(memory[least]), batch, candidate)

    def _remember(
        self,
        batch: LayoutBatch,
        chosen: NDArray[np.intp],
        seconds: NDArray[np.float64],
        memory: NDArray[np.float64],
    ) -> None:
        # Nothing else can become the front or the best.
        if not len(chosen):
            return
        languages = chosen + batch.languages.start
        gpus = self._gpus(batch)[chosen].astype(np.float64)
        scores = np.asarray(score(self.task.objective, seconds, memory, gpus))
        self.fitting += len(chosen)
        least = float(scores.min())
        self.best = least if self.best is None else min(self.best, least)
        best = np.argpartition(scores, min(self.keep, len(scores)) - 1)[: self.keep]
        keep = np.union1d(best, lower_edges(gpus, seconds, memory))
        columns = batch.others or (-1,) * len(self.tables.others)
        self._kept.append(
            Kept(
                seconds[keep],
                memory[keep],
                gpus[keep],
                scores[keep],
                np.full(len(keep), MODES.index(batch.mode)),
                languages[keep],
                np.tile(np.array(columns, dtype=np.int64), (len(keep), 1)),
            )
        )

    def _gpus(self, batch: LayoutBatch) -> NDArray[np.int64]:
        ranks: NDArray[np.int64] = np.asarray(self.tables.language.sizes.ranks)[batch.languages]
        if batch.mode == "heterogeneous":
            return ranks + other_ranks(self.tables, batch.others)
        return ranks


def other_ranks(tables: Tables, chosen: tuple[int, ...]) -> int:
    """Return the ranks of all modules beside the language model together."""
    return sum(
        int(np.asarray(other.sizes.ranks)[candidate])
        for other, candidate in zip(tables.others, chosen, strict=True)
    )


def batches(task: SearchTask, tables: Tables) -> Iterator[LayoutBatch]:
    """Yield all combinations of module sizes that the modes allow.

    Language candidates lie in the order of their ranks, so those with equal or fewer ranks are
    neighbours.
    """
    ranks, modes = np.asarray(tables.language.sizes.ranks), task.modes
    everyone = slice(int(np.searchsorted(ranks, task.constraints.least_gpus)), len(ranks))
    if "homogeneous" in modes and everyone.stop > everyone.start:
        yield LayoutBatch("homogeneous", everyone)
    if "colocated" in modes:
        yield from _colocated(tables, ranks, everyone)
    if "heterogeneous" in modes:
        yield from _heterogeneous(task, tables, ranks)


def _colocated(tables: Tables, ranks: NDArray[np.int64], everyone: slice) -> Iterator[LayoutBatch]:
    for world in np.unique(ranks[everyone]):
        where = slice(*(int(np.searchsorted(ranks, world, side)) for side in ("left", "right")))
        alike = [np.flatnonzero(other.sizes.ranks == world) for other in tables.others]
        for chosen in itertools.product(*alike):
            yield LayoutBatch("colocated", where, tuple(int(index) for index in chosen))


def _heterogeneous(
    task: SearchTask, tables: Tables, ranks: NDArray[np.int64]
) -> Iterator[LayoutBatch]:
    for chosen in itertools.product(*(range(other.count) for other in tables.others)):
        besides = other_ranks(tables, chosen)
        first = int(np.searchsorted(ranks, task.constraints.least_gpus - besides))
        last = int(np.searchsorted(ranks, task.gpus - besides, side="right"))
        if last > first:
            yield LayoutBatch("heterogeneous", slice(first, last), chosen)


def _some_sizes(sizes: ParallelSizes, which: int | slice) -> ModuleSizes:
    return ModuleSizes(
        pipeline=np.asarray(sizes.pipeline)[which],
        virtual=np.asarray(sizes.virtual)[which],
        data=np.asarray(sizes.data)[which],
        micro_batch=np.asarray(sizes.micro_batch)[which],
    )


def _shared_rules(tables: Tables, encoder: Candidates) -> Iterator[tuple[str, Mask]]:
    sizes = in_first_stage(tables.language.sizes)
    for rule in SEARCH_RULES:
        holds = np.broadcast_to(rule.holds(sizes, encoder.facts), tables.samples.shape)
        yield f"{encoder.facts.name}: {rule.reason}", holds
