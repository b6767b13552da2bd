"""The order of the samples of a global micro-batch, for data sets that state sizes beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from mimokit.config import ExperimentConfig
from mimokit.config.runtime import BALANCED
from mimokit.planning.frames import SampleCosts, SampleSizes, order_samples
from mimokit.planning.types import LayoutPlan

Order = Callable[[Sequence[int]], Sequence[int]]
"""Indices of the samples of a global micro-batch -> the same in the order in which the replicas
take them; the same on every rank."""


@runtime_checkable
class StatesSizes(Protocol):
    """A data set that states the sizes of a sample without reading it: from an index file, say."""

    def sample_sizes(self, index: int) -> SampleSizes:
        """Return the sizes of the sample that `dataset[index]` returns."""


def order_of(config: ExperimentConfig, plan: LayoutPlan, dataset: Any) -> Order | None:
    """Return how the samples of every micro-batch are ordered; None for the order of the data.

    Args:
        config: `runtime.sample_order` says whether replicas are balanced.
        dataset: states the sizes of its samples.

    Raises:
        ValueError: the config asks for balance, but the data set states no sizes.
    """
    if config.runtime.sample_order != BALANCED:
        return None
    if not isinstance(dataset, StatesSizes):
        raise ValueError(
            f"runtime.sample_order is {BALANCED}, but the data set {type(dataset).__name__} does "
            "not state the sizes of its samples; give it a method sample_sizes(index) that returns "
            "SampleSizes (mimokit.planning.frames), or leave sample_order out."
        )
    costs, sizes_of = SampleCosts(config, plan), dataset.sample_sizes

    def balanced(indices: Sequence[int]) -> Sequence[int]:
        works = costs.works([sizes_of(index) for index in indices])
        return [indices[sample] for sample in order_samples(works)]

    return balanced
