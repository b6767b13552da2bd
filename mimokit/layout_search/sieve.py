"""Leave out layouts that cannot be chosen, before their seconds are computed.

What is needed of most layouts is whether they are valid and fit. A layout takes no fewer seconds
than its language model does alone and what encoders add to any, nor than its encoders compute.
Where layouts that were seen before are better than that in all that counts, it is only counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from mimokit.config.runtime import DeploymentMode
from mimokit.config.sizes import Numbers
from mimokit.layout_search.blocks import Choices, LayoutBlock, other_ranks
from mimokit.layout_search.constraints import score
from mimokit.layout_search.cost_tables import Tables
from mimokit.layout_search.incumbents import Reached
from mimokit.layout_search.pairs import Kinds, Pairs, ValidLanguages
from mimokit.layout_search.task import SearchTask
from mimokit.prediction import layout_cost
from mimokit.prediction.deployment_modes import memory_apart, memory_together, seconds_beside

TOO_MUCH_MEMORY = "more memory than may be planned on a GPU"
MOST_KINDS = 128
"""Kinds of choices whose language candidates are remembered."""
ROUNDING = 1 - 1e-12
"""What sums in another order may differ by."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PickedLayouts:
    """Layouts of a block, one array entry each.

    Attributes:
        choice: row of the block's choices; ascends.
        language: candidate; ascends within a choice.
    """

    block: LayoutBlock
    choice: NDArray[np.int64]
    language: NDArray[np.int64]

    @property
    def others(self) -> Choices:
        """[layouts, other modules], candidates; -1 where they follow."""
        return self.block.others[self.choice]

    def take(self, rows: NDArray[np.intp]) -> PickedLayouts:
        """Return some of them."""
        return PickedLayouts(self.block, self.choice[rows], self.language[rows])


@dataclass(frozen=True)
class OthersNeed:
    """What the other modules of a choice need, next to each kind of language candidates.

    Attributes:
        added: seconds beyond those of the language model alone, at least.
        least: seconds of a step, whatever the language model takes.
        memory: bytes, on the language model's ranks in colocated mode and on their own otherwise.
        leanest: the same in as many passes of encoders as there can be.
    """

    added: Floats
    least: Floats
    memory: Floats
    leanest: Floats


@dataclass(frozen=True)
class Neighbours:
    """The valid language candidates next to a kind of choice.

    Attributes:
        seconds: of a step without other modules, at least.
        memory: bytes of the fullest rank of the language model.
        flow: their kinds; see `Flows`.
        place: in [ranks of language candidates, steps of bytes]; see `Reached`.
    """

    valid: ValidLanguages
    seconds: Floats
    memory: Floats
    flow: NDArray[np.intp]
    ranks: NDArray[np.int64]
    place: NDArray[np.intp]


@dataclass
class Sieve:
    """Counts the layouts of blocks, and picks those whose seconds are needed.

    Attributes:
        evaluated: valid layouts.
        fitting: of them, those that fit and are left out.
        dropped: reason -> layouts that were dropped for it.
    """

    task: SearchTask
    tables: Tables
    reached: Reached
    evaluated: int = 0
    fitting: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    _near: dict[object, Neighbours] = field(default_factory=dict)
    _memory: dict[object, tuple[Floats, NDArray[np.intp]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pairs = Pairs(self.task, self.tables)
        self._ranks, self._rank = np.unique(self.tables.ranks, return_inverse=True)
        self._alone: Mapping[DeploymentMode, Floats] = {
            mode: self._seconds_alone(mode) for mode in self.task.modes
        }

    def picked(self, block: LayoutBlock, *, every: bool) -> PickedLayouts:
        """Return the layouts of a block whose seconds are needed; count the others.

        Args:
            every: those of all layouts that are valid are.
        """
        every = every or block.mode == "homogeneous"
        needs = [] if every else self._others_need(block)
        besides = other_ranks(self.tables, block.others)
        languages: list[NDArray[np.int64]] = []
        for choice, (first, last) in enumerate(zip(block.first, block.last, strict=True)):
            near = self._next_to(block.mode, block.others[choice])
            for reason, drops in near.valid.dropped:
                self.dropped[reason] += int(np.count_nonzero(drops[first:last]))
            here = slice(*np.searchsorted(near.valid.candidates, (first, last)))
            places = near.valid.candidates[here]
            self.evaluated += len(places)
            if not every:
                places = places[
                    self._needed(block.mode, near, here, needs[choice], besides[choice])
                ]
            languages.append(places)
        counts = [len(places) for places in languages]
        choices = np.repeat(np.arange(len(counts)), counts)
        return PickedLayouts(block, choices, np.concatenate(languages))

    def _needed(
        self, mode: DeploymentMode, near: Neighbours, here: slice, others: OthersNeed, besides: int
    ) -> NDArray[np.bool_]:
        limit, flow, own = self.task.memory_limit, near.flow[here], near.memory[here]
        if mode == "heterogeneous":
            memory = np.maximum(own, others.memory.take(flow))
        else:
            memory, besides = own + others.memory.take(flow), 0
            if memory.max(initial=0.0) > limit:
                memory = np.where(memory <= limit, memory, own + others.leanest.take(flow))
        seconds = np.maximum(near.seconds[here] + others.added.take(flow), others.least.take(flow))
        needed = seconds < self.reached.least_seconds(self._ranks + besides).take(near.place[here])
        scores = score(self.task.objective, seconds, memory, near.ranks[here] + besides)
        needed |= scores <= self.reached.most_score(mode)
        fits = memory <= limit
        needed &= fits
        fitting = np.count_nonzero(fits)
        self.fitting += int(fitting - np.count_nonzero(needed))
        self.dropped[TOO_MUCH_MEMORY] += len(fits) - int(fitting)
        return needed

    def _next_to(self, mode: DeploymentMode, others: Choices) -> Neighbours:
        kinds = self._pairs.kinds(mode, others)
        if (mode, kinds) not in self._near:
            if len(self._near) == MOST_KINDS:
                self._near.clear()
            valid = self._pairs.next_to(mode, kinds)
            places = valid.candidates
            memory, place = self._language_memory(mode, kinds, others)
            self._near[mode, kinds] = Neighbours(
                valid,
                self._alone[mode][places],
                memory[places],
                self.tables.flows.of[places],
                self.tables.ranks[places],
                place[places],
            )
        return self._near[mode, kinds]

    def _language_memory(
        self, mode: DeploymentMode, kinds: Kinds, others: Choices
    ) -> tuple[Floats, NDArray[np.intp]]:
        """Return the bytes of every language candidate next to others, and its place by them."""
        apart = mode == "heterogeneous"
        stages = tuple(sizes[:2] for sizes, _ in kinds) if apart else None
        if stages not in self._memory:  # pipelines alone decide what is in flight
            memory = np.asarray(self.tables.language_costs.memory)
            if apart:
                costs = self.tables.beside(np.arange(len(memory)), others)
                memory = np.asarray(memory_apart(*costs)[0])
            place = self._rank * len(self.reached.bytes) + self.reached.step_of(memory)
            self._memory[stages] = memory, place
        return self._memory[stages]

    def _seconds_alone(self, mode: DeploymentMode) -> Floats:
        """Return the least seconds of every language candidate, whatever is next to it.

        Decoders behind it let its first stages compute ahead; cores are shared by all modules.
        """
        costs, task = self.tables.language_costs, self.task
        language = replace(costs, topology=((costs.name, ()),))
        alone = layout_cost(mode, language, [], task.workload, task.system).seconds
        known = len(task.others) == len(task.branches) and task.hardware.cores is None
        return np.broadcast_to(ROUNDING * alone * known, (self.tables.language.count,))

    def _others_need(self, block: LayoutBlock) -> list[OthersNeed]:
        first, task = self.tables.flows.first, self.task
        language, encoders = self.tables.beside(first, block.others.T[..., None])
        added = seconds_beside(block.mode, language, encoders, task.workload, task.system)
        least: Numbers = 0.0
        if block.mode == "heterogeneous":
            least = reduce(np.maximum, (encoder.seconds for encoder in encoders), least)
            memory = leanest = memory_apart(language, encoders)[1]
        else:
            at_once = task.workload.encoder_microbatches
            memory = leanest = memory_together(language, encoders, at_once)[1]
            if at_once is None:
                leanest = memory_together(language, encoders, 1)[1]
        shape = len(block.others), len(first)
        needs = (ROUNDING * added, ROUNDING * least, memory, leanest)
        rows = zip(*(np.broadcast_to(each, shape) for each in needs), strict=True)
        return [OthersNeed(*row) for row in rows]
