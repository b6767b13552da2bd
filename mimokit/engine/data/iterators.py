"""The samples that a rank reads in every micro-batch, according to the batch plan."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence, Sized
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from mimokit.config import DataConfig, ExperimentSections
from mimokit.config.runtime import BALANCED
from mimokit.engine.data.batch import Batch
from mimokit.engine.data.check import checked
from mimokit.planning.frames import SampleCosts, SampleSizes, order_samples
from mimokit.planning.types import LayoutPlan, SampleRange

Order = Callable[[Sequence[int]], Sequence[int]]
"""Indices of the samples of a global micro-batch -> the same in the order in which the replicas
take them; the same on every rank."""
PlacesOf = Callable[[int, int], Sequence[int]]
"""Step and micro-batch of it -> for every sample, in the order in which the replicas take them, its
number among those that were drawn."""


@runtime_checkable
class StatesSizes(Protocol):
    """A data set that states the sizes of a sample without reading it: from an index file, say."""

    def sample_sizes(self, index: int) -> SampleSizes:
        """Return the sizes of the sample that `dataset[index]` returns."""


def order_of(config: ExperimentSections, plan: LayoutPlan, dataset: Any) -> Order | None:
    """Return how the samples of every micro-batch are ordered; None for the order of the data.

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


Collate = Callable[[list[Any]], Batch]


class PlannedIndex(int):
    """The index of a sample with its place in a step, for data sets that depend on it.

    Attributes:
        sample: within the global micro-batch.
    """

    microbatch: int
    sample: int

    def __new__(cls, index: int, microbatch: int, sample: int) -> PlannedIndex:
        """Return the index with its place."""
        planned = super().__new__(cls, index)
        planned.microbatch, planned.sample = microbatch, sample
        return planned

    def __reduce__(self) -> tuple[type[PlannedIndex], tuple[int, int, int]]:
        return PlannedIndex, (int(self), self.microbatch, self.sample)


def place_of(index: int) -> tuple[int, int]:
    """Return (micro-batch of a step, sample of the global one); (0, 0) of a plain integer."""
    return (index.microbatch, index.sample) if isinstance(index, PlannedIndex) else (0, 0)


class PlannedBatches(Sampler[list[int]]):
    """An endless iterator over the sample indices of one rank, in an order independent of layout.

    Every epoch is a permutation that depends on seed and epoch alone; global micro-batch k takes
    the next `samples_per_microbatch` indices of it, and the rank takes its planned range. If the
    data set has fewer samples than a micro-batch, the micro-batch repeats them, in a permutation
    that is drawn anew for every micro-batch.

    Args:
        samples_per_microbatch: over all replicas.
        taken: the range within the micro-batch that this rank reads.
        first: number of global micro-batches to skip, for a run that is continued.
        num_microbatches: of an optimizer step, for the places of the samples.

    Raises:
        ValueError: the data set has no samples.
    """

    def __init__(
        self,
        dataset_size: int,
        samples_per_microbatch: int,
        taken: SampleRange,
        seed: int,
        first: int = 0,
        num_microbatches: int = 1,
        order: Order | None = None,
        turn: tuple[int, int] = (0, 1),
    ) -> None:
        if not dataset_size:
            raise ValueError("The data set has 0 samples; give it at least one.")
        self._size = dataset_size
        self._samples_per_microbatch = samples_per_microbatch
        self._taken = taken
        self._seed = seed
        self._first = first
        self._num_microbatches = num_microbatches
        self._order = order
        self._replica, self._replicas = turn

    def __iter__(self) -> Iterator[list[int]]:
        return map(self.of, itertools.count(self._first))

    def of(self, microbatch: int) -> list[int]:
        """Return what this rank reads of a global micro-batch, counted from the first step."""
        per_epoch = max(1, self._size // self._samples_per_microbatch)
        step, within_step = divmod(microbatch, self._num_microbatches)
        step = step * self._replicas + self._replica
        epoch, within = divmod(step * self._num_microbatches + within_step, per_epoch)
        base = within * self._samples_per_microbatch
        order = permutation(self._size, self._seed, epoch)
        places = range(base, base + self._samples_per_microbatch)
        return self._share([order[place % self._size] for place in places], within_step)

    def _share(self, drawn: Sequence[int], microbatch: int) -> list[int]:
        if self._order is None:
            return [PlannedIndex(drawn[n], microbatch, n) for n in range(*self._taken)]
        indices = [PlannedIndex(index, microbatch, n) for n, index in enumerate(drawn)]
        return list(self._order(indices)[slice(*self._taken)])


@lru_cache(maxsize=2)
def permutation(size: int, seed: int, epoch: int = 0) -> Sequence[int]:
    """Return the order in which an epoch takes the samples of a data set, in every layout."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return tuple(torch.randperm(size, generator=generator).tolist())


def drawn_places(
    plan: LayoutPlan, data_config: DataConfig, dataset: Any, seed: int, order: Order
) -> PlacesOf:
    """Return where the samples of micro-batches are among those that were drawn.

    See `iterate_batches` for the arguments.
    """
    batch = plan.batch
    batches = PlannedBatches(
        min(len(dataset), data_config.dataset_size),
        batch.samples_per_microbatch,
        (0, batch.samples_per_microbatch),
        seed,
        num_microbatches=batch.num_microbatches,
        order=order,
        turn=(batch.replica, batch.replicas),
    )

    @lru_cache(maxsize=batch.num_microbatches)
    def places(step: int, microbatch: int) -> Sequence[int]:
        return [
            place_of(index)[1] for index in batches.of(step * batch.num_microbatches + microbatch)
        ]

    return places


def iterate_batches(
    plan: LayoutPlan,
    data_config: DataConfig,
    rank: int,
    dataset: Dataset[Any],
    collate_fn: Collate,
    seed: int,
    order: Order | None = None,
    begun: int = 0,
) -> Iterator[Batch] | None:
    """Iterate over the batches that a rank reads, once for all its modules.

    Where modules share ranks, a batch has the samples of all of them; the schedule slices them.

    Args:
        seed: of the order of the samples.
        order: of the samples within a micro-batch, see `order_of`.
        begun: optimizer steps that were done before, whose samples are skipped.

    Returns:
        The batches, None on a rank that reads no data.

    Raises:
        ValueError: the data set has no samples or no length.
    """
    taken = plan.batch.read_by(rank)
    if taken is None:
        return None
    workers = data_config.num_workers
    if not isinstance(dataset, Sized):
        raise ValueError(
            f"The data set is a {type(dataset).__name__} without a length; give one with __len__ "
            "and __getitem__, so that every rank can read its own samples."
        )
    size = min(len(dataset), data_config.dataset_size)
    loader = DataLoader(
        dataset,
        batch_sampler=PlannedBatches(
            size,
            plan.batch.samples_per_microbatch,
            taken,
            seed,
            first=begun * plan.batch.num_microbatches,
            num_microbatches=plan.batch.num_microbatches,
            order=order,
            turn=(plan.batch.replica, plan.batch.replicas),
        ),
        collate_fn=collate_fn,
        num_workers=workers,
        prefetch_factor=data_config.prefetch_factor if workers else None,
        persistent_workers=data_config.persistent_workers and bool(workers),
    )
    return checked(iter(loader), taken[1] - taken[0], data_config)
