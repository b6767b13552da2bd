"""All combinations of module sizes that the modes allow, in blocks that are evaluated together."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mimokit.config.runtime import DeploymentMode
from mimokit.layout_search.cost_tables import Tables
from mimokit.layout_search.task import SearchTask

FIRST_LAYOUTS, MOST_LAYOUTS = 2**14, 2**19
"""Layouts of the first block, and of the largest. Each has twice those of the block before it: what
the first ones reach leaves most of the later ones out."""

Choices = NDArray[np.int64]


@dataclass(frozen=True)
class LayoutBlock:
    """Choices of other modules, each next to language candidates that are neighbours.

    Attributes:
        others: [choices, other modules], candidates; -1 where they follow.
        first, last: [choices], the first language candidate of each choice, and the one behind it.
    """

    mode: DeploymentMode
    others: Choices
    first: Choices
    last: Choices

    @cached_property
    def layouts(self) -> int:
        """Combinations, valid or not."""
        return int((self.last - self.first).sum())


def blocks(task: SearchTask, tables: Tables) -> Iterator[LayoutBlock]:
    """Yield all combinations of module sizes that the modes allow.

    Language candidates lie in the order of their ranks, so those with equal or fewer ranks are
    neighbours.
    """
    ranks, modes = tables.ranks, task.modes
    least = int(np.searchsorted(ranks, task.constraints.least_gpus))
    if "homogeneous" in modes and least < len(ranks):
        follow = np.full((1, len(tables.others)), -1)
        yield LayoutBlock("homogeneous", follow, np.array([least]), np.array([len(ranks)]))
    if "colocated" in modes:
        yield from _cut("colocated", _colocated(tables, ranks, least))
    if "heterogeneous" in modes:
        yield from _cut("heterogeneous", [_heterogeneous(task, tables, ranks)])


Combined = tuple[Choices, Choices, Choices]
"""Other modules, first, last; see `LayoutBlock`."""


def _colocated(tables: Tables, ranks: NDArray[np.int64], least: int) -> Iterator[Combined]:
    for world in np.unique(ranks[least:])[::-1]:  # the quickest first
        alike = [np.flatnonzero(other.sizes.ranks == world) for other in tables.others]
        others = _product(alike)
        ends = (np.searchsorted(ranks, world, side) for side in ("left", "right"))
        first, last = (np.full(len(others), end) for end in ends)
        yield others, first, last


def _heterogeneous(task: SearchTask, tables: Tables, ranks: NDArray[np.int64]) -> Combined:
    others = _product([np.arange(other.count) for other in tables.others])
    besides = other_ranks(tables, others)
    first = np.searchsorted(ranks, task.constraints.least_gpus - besides)
    last = np.searchsorted(ranks, task.gpus - besides, side="right")
    some = last > first
    return others[some], first[some], last[some]


def _product(candidates: list[NDArray[np.int64]]) -> Choices:
    grids = np.meshgrid(*candidates, indexing="ij") if candidates else []
    return np.stack([grid.reshape(-1) for grid in grids], axis=-1)


def other_ranks(tables: Tables, chosen: Choices) -> NDArray[np.int64]:
    """Return for each choice the ranks of all modules but the language model, summed."""
    ranks = np.zeros(len(chosen), np.int64)
    for other, candidates in zip(tables.others, chosen.T, strict=True):
        ranks += np.asarray(other.sizes.ranks)[candidates]
    return ranks


def _cut(mode: DeploymentMode, combined: Iterable[Combined]) -> Iterator[LayoutBlock]:
    for others, first, last in combined:
        most = FIRST_LAYOUTS
        reached = np.cumsum(last - first)
        begin = 0
        while begin < len(others):
            before = reached[begin - 1] if begin else 0
            end = max(begin + 1, int(np.searchsorted(reached, before + most, side="right")))
            yield LayoutBlock(mode, others[begin:end], first[begin:end], last[begin:end])
            begin, most = end, min(2 * most, MOST_LAYOUTS)
