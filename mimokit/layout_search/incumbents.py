"""What a search has reached, which leaves out most layouts before their seconds are computed."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mimokit.config.runtime import DeploymentMode
from mimokit.layout_search.candidates import Candidates, numbered
from mimokit.layout_search.constraints import DIMENSIONS, MODES
from mimokit.layout_search.cost_tables import Tables
from mimokit.layout_search.pareto import Kept

PER_MODE = 4
"""Layouts of every mode that are simulated, so that modes can be compared."""
LEVELS = 256
"""Numbers of GPUs, and of bytes, between which the front is read coarsely."""

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


@dataclass
class LeastScores:
    """The least scores of different layouts, which differ by more than optimizer instances."""

    count: int
    scores: Floats = field(default_factory=lambda: np.zeros(0))
    layouts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def most(self) -> float:
        """The largest score that one more layout may have to be among them."""
        return float(self.scores[-1]) if len(self.scores) == self.count else np.inf

    def add(self, scores: Floats, layouts: NDArray[np.int64]) -> None:
        """Take in layouts."""
        better = scores <= self.most
        scores = np.concatenate((self.scores, scores[better]))
        layouts = np.concatenate((self.layouts, layouts[better]))
        order = np.argsort(scores, kind="stable")
        first = np.sort(np.unique(layouts[order], return_index=True)[1])[: self.count]
        self.scores, self.layouts = scores[order][first], layouts[order][first]


class Reached:
    """The best scores, and the least seconds for as many GPUs and bytes."""

    def __init__(self, tables: Tables, memory: Floats, gpus: int, keep: int) -> None:
        ranks = tables.ranks
        steps = np.geomspace(1, max(1, gpus), LEVELS).astype(np.int64)
        self.gpus = np.unique(np.concatenate((steps, ranks)))
        places = np.linspace(0, len(memory) - 1, LEVELS).astype(np.int64)
        self.bytes = np.unique([0.0, *np.sort(memory)[places]])
        self.seconds = np.full((len(self.gpus), len(self.bytes)), np.inf)
        self._plain = [_plain(module) for module in (tables.language, *tables.others)]
        self._best = LeastScores(keep)
        self._of_mode = {mode: LeastScores(PER_MODE) for mode in MODES}

    def add(self, kept: Kept) -> None:
        """Take in layouts of a search."""
        layouts = self._numbers(kept)
        self._best.add(kept.score, layouts)
        for number, mode in enumerate(MODES):
            chosen = kept.mode == number
            self._of_mode[mode].add(kept.score[chosen], layouts[chosen])
        level = np.searchsorted(self.gpus, kept.gpus)
        byte = np.searchsorted(self.bytes, kept.memory)
        inside = (level < len(self.gpus)) & (byte < len(self.bytes))
        np.minimum.at(self.seconds, (level[inside], byte[inside]), kept.seconds[inside])
        for axis in (0, 1):
            np.minimum.accumulate(self.seconds, axis=axis, out=self.seconds)

    def may_matter(self, mode: DeploymentMode, kept: Kept) -> NDArray[np.bool_]:
        """Return which layouts of a mode may still be chosen, or be on the front."""
        level = np.searchsorted(self.gpus, kept.gpus, side="right") - 1
        quickest = self.seconds[level, self.step_of(kept.memory)]
        return (kept.score <= self.most_score(mode)) | (kept.seconds < quickest)

    def most_score(self, mode: DeploymentMode) -> float:
        """Return the largest score with which a layout may still be chosen."""
        return max(self._best.most, self._of_mode[mode].most)

    def least_seconds(self, gpus: NDArray[np.int64]) -> Floats:
        """Return [GPUs, steps of bytes], the seconds below which a layout may be on the front."""
        return self.seconds[np.searchsorted(self.gpus, gpus, side="right") - 1]

    def step_of(self, memory: Floats) -> Places:
        """Return the step of bytes that a layout has at least."""
        return np.searchsorted(self.bytes, memory, side="right") - 1

    def _numbers(self, kept: Kept) -> NDArray[np.int64]:
        """Return a number per layout; if two agree by chance, only more is evaluated."""
        numbers = kept.mode.copy()
        columns = (kept.language, *kept.others.T)
        for column, plain in zip(columns, self._plain, strict=True):
            numbers = numbers * (len(plain) + 1) + np.where(column < 0, len(plain), plain[column])
        return numbers


def _plain(module: Candidates) -> NDArray[np.int64]:
    """Return the number of each candidate, the same for those that differ by instances only."""
    sizes = (getattr(module.sizes, name) for name in DIMENSIONS.values() if name != "instances")
    return np.unique(numbered(sizes), return_inverse=True)[1]
