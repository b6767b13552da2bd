"""What every node of a fit is sent, and its samples: which ones, in which order, from any step."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

from mimokit.extras.strategies.fits.arguments import FitArguments, is_dataset, is_streamed
from mimokit.extras.strategies.nodes.communicate import Pace
from mimokit.extras.strategies.nodes.strategy import Strategy
from mimokit.units import counted

Emit = Callable[[Mapping[str, Any]], object]
Factory = Callable[[int, int, bool], Any]
"""(node, nodes, whether for training) -> a dataset."""
Source = Any
"""A dataset, or a `Factory`."""


class FitError(RuntimeError):
    """A fit cannot begin or go on; the message is one sentence that names the node."""


@dataclass(frozen=True, kw_only=True)
class FitJob(FitArguments):
    """A fit, as its nodes get it: what `Trainer.fit` was given, and what follows.

    Attributes:
        train: a dataset that nodes share out, or a factory of each node's; so is `validation`.
        checkpoints: the folder with a folder per node.
        speeds: of the nodes of an emulated network; none: as they are.
    """

    model: nn.Module
    strategy: Strategy
    train: Source
    validation: Source
    checkpoints: Path
    dataloader_kwargs: Mapping[str, Any] = field(default_factory=dict)
    pace: Pace | None = None
    speeds: tuple[float, ...] = ()


Micro: TypeAlias = tuple[Any, int]
"""A micro-batch, and how many samples it has."""


class NodeBatches:
    """The training batches of a node.

    A dataset is shared out as by `DistributedSampler`: node r takes the entries r, r + nodes, … of
    an order that is drawn for every epoch. A factory makes the data of one node. After the last
    batch the next epoch begins. Batches depend only on the step, so a fit can begin anywhere.

    Attributes:
        batches: of an epoch; the last one may be smaller. None: not known.
    """

    def __init__(self, job: FitJob, rank: int, nodes: int) -> None:
        """Take or make the dataset; `FitError` if it has no samples."""
        self._job, self._rank = job, rank
        self._dataset = made(job.train, rank, nodes, training=True)
        self._sampler: DistributedSampler[Any] | None = None
        self.batches: int | None = None
        if is_streamed(self._dataset):
            return
        if is_dataset(job.train):
            self._sampler = DistributedSampler(
                self._dataset, nodes, rank, shuffle=job.shuffle, seed=job.seed
            )
        entries = len(self._dataset) if self._sampler is None else len(self._sampler)
        self.batches = math.ceil(entries / job.batch_size)

    def from_step(self, step: int, minibatch_size: int) -> Iterator[list[Micro]]:
        """Yield the micro-batches of each step, after `step` completed ones, without an end."""
        if self.batches is None:
            yield from itertools.islice(self._streamed(minibatch_size), step, None)
        assert self.batches is not None
        epoch, first = divmod(step, self.batches)
        while True:
            yield from self._epoch(epoch, first, minibatch_size)
            epoch, first = epoch + 1, 0

    def _epoch(self, epoch: int, first: int, minibatch_size: int) -> Iterator[list[Micro]]:
        batches = list(chunks(self._order(epoch), self._job.batch_size))[first:]
        parts = [list(chunks(batch, minibatch_size)) for batch in batches]
        flat = [part for batch in parts for part in batch]
        loader = iter(self._loader(epoch, batch_sampler=flat))
        for batch in parts:
            yield [(next(loader), len(part)) for part in batch]

    def _order(self, epoch: int) -> list[int]:
        if self._sampler is not None:
            self._sampler.set_epoch(epoch)
            return list(self._sampler)
        if not self._job.shuffle:
            return list(range(len(self._dataset)))
        return torch.randperm(len(self._dataset), generator=self._draws(epoch)).tolist()

    def _streamed(self, minibatch_size: int) -> Iterator[list[Micro]]:
        micros = self._job.batch_size // minibatch_size
        for epoch in itertools.count():
            loader = iter(self._loader(epoch, batch_size=minibatch_size))
            batch = list(itertools.islice(loader, micros))
            if not batch:
                raise FitError(f"node {self._rank}: the training data gives no samples")
            while batch:
                yield [(part, batch_length(part, minibatch_size)) for part in batch]
                batch = list(itertools.islice(loader, micros))

    def _loader(self, epoch: int, **options: Any) -> DataLoader[Any]:
        kwargs = self._job.dataloader_kwargs
        # The generator keeps the loader from drawing from that of the training.
        return DataLoader(self._dataset, generator=self._draws(epoch), **options, **kwargs)

    def _draws(self, epoch: int) -> torch.Generator:
        return torch.Generator().manual_seed(self._job.seed + epoch)


class ValidationData:
    """The first `val_size` validation samples of a node."""

    def __init__(self, job: FitJob, rank: int, nodes: int) -> None:
        """Take or make the dataset; `FitError` if it has no samples, or fewer than `val_size`."""
        self._job = job
        self._dataset = made(job.validation, rank, nodes, training=False)
        if not is_streamed(self._dataset) and len(self._dataset) < job.val_size:
            raise FitError(
                f"node {rank}: val_size is {job.val_size}, but the validation set has "
                f"{counted(len(self._dataset), 'sample')}"
            )

    def micros(self, minibatch_size: int) -> Iterator[Micro]:
        """Yield the samples in micro-batches."""
        kwargs = self._job.dataloader_kwargs
        draws = torch.Generator().manual_seed(self._job.seed)
        if not is_streamed(self._dataset):
            parts = list(chunks(range(self._job.val_size), minibatch_size))
            loader = DataLoader(self._dataset, batch_sampler=parts, generator=draws, **kwargs)
            yield from zip(loader, map(len, parts), strict=True)
            return
        left = self._job.val_size
        for part in DataLoader(self._dataset, minibatch_size, generator=draws, **kwargs):
            samples = batch_length(part, minibatch_size)
            yield part, samples
            left -= samples
            if left <= 0:
                return


def made(source: Source, rank: int, nodes: int, *, training: bool) -> Any:
    """Return a dataset: the source itself, or what a factory makes for a node.

    Raises:
        FitError: the factory makes none, or it is empty.
    """
    if is_dataset(source):
        return source
    kind = "training" if training else "validation"
    dataset = source(rank, nodes, training)
    if dataset is None or not (hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")):
        result = "nothing" if dataset is None else f"a {type(dataset).__name__}"
        raise FitError(f"node {rank}: the {kind} factory gives {result}; it must give a dataset")
    if not is_streamed(dataset) and len(dataset) == 0:
        raise FitError(f"node {rank}: the {kind} factory gives a dataset without samples")
    return dataset


def chunks(entries: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield parts of a length; the last may be shorter."""
    for start in range(0, len(entries), size):
        yield list(entries[start : start + size])


def batch_length(batch: Any, otherwise: int) -> int:
    """Return the length of the first tensor of a batch, or a guess if it has none."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 1
    parts: Any = ()
    if isinstance(batch, Mapping):
        parts = batch.values()
    elif isinstance(batch, Sequence) and not isinstance(batch, str):
        parts = batch
    counts = (batch_length(part, 0) for part in parts)
    return next((count for count in counts if count), otherwise)


def on_device(batch: Any, device: torch.device) -> Any:
    """Return a batch with its tensors on a device."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, Mapping):
        return {key: on_device(part, device) for key, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(on_device(part, device) for part in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(on_device(part, device) for part in batch)
    return batch.to(device) if hasattr(batch, "to") else batch
