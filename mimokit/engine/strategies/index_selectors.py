"""Which entries of a tensor an exchange of SPARTA takes, equal on all nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from mimokit.config.strategy import Selector
from mimokit.planning.strategies import Masks


class IndexSelector(ABC):
    """Chooses entries. Random choices of a subclass are drawn alike on all nodes."""

    def __init__(self, p: float) -> None:
        """Take the share."""
        self.p = p

    @abstractmethod
    def get_indices(self, param: Tensor, iteration: int) -> Tensor:
        """Return a mask of the shape of `param` for an exchange, counted from 0."""


class PlannedSelector(IndexSelector):
    """A selector that `StrategyPlan` knows; under a strategy its masks are those of the plan."""

    name: ClassVar[Selector]

    def __init__(self, p: float, seed: int = 42) -> None:
        """Take the share, and a seed for use without a strategy."""
        super().__init__(p)
        self._masks = Masks(self.name, p, seed)
        self._seen: dict[int, str] = {}

    def get_indices(self, param: Tensor, iteration: int) -> Tensor:
        """Return a mask of the shape of `param` for an exchange, counted from 0."""
        tensor = self._seen.setdefault(id(param), str(len(self._seen)))
        mask = torch.zeros(param.numel(), dtype=torch.bool, device=param.device)
        indices = self._masks.indices(tensor, param.numel(), iteration)
        mask[torch.from_numpy(indices).to(param.device)] = True
        return mask.view(param.shape)


class RandomIndexSelector(PlannedSelector):
    """Each entry with probability p, drawn again each time."""

    name = "random"


class ShuffledSequentialIndexSelector(PlannedSelector):
    """One permutation for the whole run, in ceil(1 / p) chunks that take turns."""

    name = "shuffled_sequential"


class PartitionedIndexSelector(PlannedSelector):
    """As many classes in random order, drawn again after each cycle."""

    name = "partitioned"


SELECTORS: dict[str, type[PlannedSelector]] = {
    one.name: one
    for one in (RandomIndexSelector, ShuffledSequentialIndexSelector, PartitionedIndexSelector)
}
