"""All parallel sizes of one module that no rule forbids, and how many each rule forbade."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.layout_search.constraints import DIMENSIONS
from mimokit.layout_search.facts import ModuleFacts
from mimokit.layout_search.rules import RULES
from mimokit.layout_search.space import Axes


@dataclass(frozen=True)
class Candidates:
    """Sizes of one module.

    Attributes:
        facts: of the module.
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
        for rule in RULES:
            if rule.after != dimension:
                continue
            broken = np.broadcast_to(
                rule.broken(facts, ParallelSizes(**columns)), columns[field].shape
            )
            dropped[rule.reason] += int(np.count_nonzero(broken)) * left
            columns = {name: column[~broken] for name, column in columns.items()}
        rows = len(columns[field])
    sizes = ParallelSizes(**columns)
    order = np.argsort(sizes.ranks, kind="stable")
    return Candidates(facts, sizes.take(order), {k: n for k, n in dropped.items() if n})


def _after(dimension: str) -> list[str]:
    names = list(DIMENSIONS)
    return names[names.index(dimension) + 1 :]
