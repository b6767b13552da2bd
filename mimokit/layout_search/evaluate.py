"""Evaluate all combinations of module sizes, and remember the best ones."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mimokit.config.runtime import DeploymentMode
from mimokit.layout_search.blocks import LayoutBlock, other_ranks
from mimokit.layout_search.constraints import MODES, score
from mimokit.layout_search.cost_tables import Tables
from mimokit.layout_search.incumbents import Reached
from mimokit.layout_search.pareto import Kept, joined_fronts, lower_edges
from mimokit.layout_search.sieve import TOO_MUCH_MEMORY, PickedLayouts, Sieve
from mimokit.layout_search.task import SearchTask, passes_of
from mimokit.prediction import layout_cost
from mimokit.prediction.deployment_modes import colocated
from mimokit.prediction.module_costs import EncoderCost, LanguageCost

TOO_SLOW = "a step takes longer than allowed"

Floats = NDArray[np.float64]


@dataclass
class Scan:
    """What a search has seen so far.

    Attributes:
        keep: how many layouts of every choice of others are remembered next to its front.
        leanest: least memory seen while nothing fits, with the layout's mode, language candidate
            and candidates of others.
        quickest: least seconds of the layouts that fit in memory and were computed.
    """

    task: SearchTask
    tables: Tables
    keep: int
    best: float | None = None
    leanest: tuple[float, DeploymentMode, int, tuple[int, ...]] | None = None
    quickest: float = np.inf
    _fitting: int = 0
    _kept: list[Kept] = field(default_factory=list)

    def __post_init__(self) -> None:
        memory = np.asarray(self.tables.language_costs.memory)
        self._reached = Reached(self.tables, memory, self.task.gpus, self.keep)
        self._sieve = Sieve(self.task, self.tables, self._reached)

    @property
    def evaluated(self) -> int:
        """Layouts that are valid."""
        return self._sieve.evaluated

    @property
    def fitting(self) -> int:
        """Of them, those that fit and are quick enough."""
        return self._fitting + self._sieve.fitting

    @property
    def dropped(self) -> Counter[str]:
        """Reason -> layouts that were dropped for it."""
        return self._sieve.dropped

    @property
    def kept(self) -> Kept:
        """Everything remembered."""
        return joined_fronts(self._kept)

    def see(self, block: LayoutBlock) -> None:
        """Evaluate a block."""
        slowest = self.task.constraints.most_seconds
        layouts = self._sieve.picked(block, every=not self.fitting or slowest is not None)
        if not len(layouts.language):
            return
        seconds, memory = self._outcome(layouts)
        self._remember_leanest(layouts, memory)
        fits = memory <= self.task.memory_limit
        quick = np.full(len(fits), True) if slowest is None else seconds <= slowest
        self.dropped[TOO_MUCH_MEMORY] += int(np.count_nonzero(~fits))
        self.dropped[TOO_SLOW] += int(np.count_nonzero(fits & ~quick))
        self.quickest = min(self.quickest, float(seconds[fits].min(initial=np.inf)))
        good = np.flatnonzero(fits & quick)
        self._fitting += len(good)
        if len(good):
            self._remember(layouts.take(good), seconds[good], memory[good])

    def _outcome(self, layouts: PickedLayouts) -> tuple[Floats, Floats]:
        mode, task = layouts.block.mode, self.task
        if mode == "homogeneous":
            language, encoders = self.tables.inside_of(layouts.language)
        else:
            language, encoders = self.tables.beside(layouts.language, layouts.others.T)
        with np.errstate(divide="ignore", invalid="ignore"):  # of sizes of nothing
            cost = layout_cost(mode, language, encoders, task.workload, task.system)
        shape = layouts.language.shape
        seconds, memory = (np.broadcast_to(part, shape) for part in (cost.seconds, cost.memory))
        if mode != "colocated" or task.workload.encoder_microbatches is not None:
            return seconds, memory
        return self._in_passes(language, encoders, seconds, memory)

    def _in_passes(
        self, language: LanguageCost, encoders: list[EncoderCost], seconds: Floats, memory: Floats
    ) -> tuple[Floats, Floats]:
        # More passes keep fewer activations, and take longer; see `SearchTask.predict`.
        count = language.micro_batches
        for passes in passes_of(int(np.max(count))):
            over = memory > self.task.memory_limit
            if not over.any():
                break
            at_once, task = np.ceil(count / passes), self.task
            cost = colocated(language, encoders, task.workload, task.system, at_once)
            seconds = np.where(over, cost.seconds, seconds)
            memory = np.where(over, cost.memory, memory)
        return seconds, memory

    def _remember_leanest(self, layouts: PickedLayouts, memory: Floats) -> None:
        least = int(np.argmin(memory))
        if self.leanest is None or memory[least] < self.leanest[0]:
            others = tuple(layouts.others[least].tolist())
            language = int(layouts.language[least])
            self.leanest = float(memory[least]), layouts.block.mode, language, others

    def _remember(self, layouts: PickedLayouts, seconds: Floats, memory: Floats) -> None:
        # Nothing else can become the front or the best.
        mode, others, tables = layouts.block.mode, layouts.others, self.tables
        gpus = tables.ranks[layouts.language].astype(np.float64)
        if mode == "heterogeneous":
            gpus += other_ranks(tables, others)
        scores = np.asarray(score(self.task.objective, seconds, memory, gpus))
        least = float(scores.min())
        self.best = least if self.best is None else min(self.best, least)
        number = np.full(len(gpus), MODES.index(mode))
        kept = Kept(seconds, memory, gpus, scores, number, layouts.language, others)
        matter = self._reached.may_matter(mode, kept)
        kept, choice = kept.take(matter), layouts.choice[matter]
        best = best_of_each(choice, kept.score, self.keep)
        edges = lower_edges(groups(choice, kept.gpus), kept.seconds, kept.memory)
        kept = kept.take(np.union1d(best, edges))
        self._kept.append(kept)
        self._reached.add(kept)


def best_of_each(choice: NDArray[np.int64], scores: Floats, keep: int) -> NDArray[np.intp]:
    """Return the layouts of each choice with the least scores, at most as many as are kept."""
    order = np.lexsort((scores, choice))  # of equal ones the first
    starts = np.searchsorted(choice, choice[order])
    return order[np.arange(len(order)) - starts < keep]


def groups(choice: NDArray[np.int64], gpus: Floats) -> Floats:
    """Return a number that ascends, the same for layouts of one choice with as many GPUs."""
    changes = (np.diff(choice, prepend=choice[:1]) != 0) | (np.diff(gpus, prepend=gpus[:1]) != 0)
    return np.cumsum(changes).astype(np.float64)
