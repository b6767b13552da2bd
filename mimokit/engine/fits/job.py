"""What every node of a fit is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import Dataset, IterableDataset

from mimokit.engine.strategies.communicate import Pace
from mimokit.engine.strategies.strategy import Strategy

Emit = Callable[[Mapping[str, Any]], object]
Factory = Callable[[int, int, bool], Any]
"""(node, nodes, whether for training) -> a dataset."""
Source = Any
"""A dataset, or a `Factory`."""


class FitError(RuntimeError):
    """A fit cannot begin or go on; the message is one sentence that names the node."""


@dataclass(frozen=True)
class FitJob:
    """A fit; the fields that are not explained here are arguments of `Trainer.fit`.

    Attributes:
        train: a dataset that nodes share out, or a factory of each node's.
        validation: likewise.
        minibatch_size: None: node 0 finds it.
        checkpoints: the folder with a folder per node.
        pace: how long exchanges take on an emulated network; None: as long as they take.
        speeds: of nodes of an emulated network; none: as they are.
    """

    model: nn.Module
    strategy: Strategy
    train: Source
    validation: Source
    checkpoints: Path
    num_epochs: int = 1
    max_steps: int | None = None
    batch_size: int = 16
    minibatch_size: int | None = None
    device: str | None = None
    devices: Sequence[int] | None = None
    shuffle: bool = True
    val_size: int = 64
    val_interval: int = 100
    autocast: bool = False
    checkpoint_interval: int | None = None
    correlation_interval: int | None = None
    dataloader_kwargs: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 42
    resume: bool = False
    pace: Pace | None = None
    speeds: tuple[float, ...] = ()


def is_dataset(source: Source) -> bool:
    """Return whether a source is a dataset; else it is a factory, if it can be called."""
    kinds = (Dataset, IterableDataset)
    return isinstance(source, kinds) or hasattr(source, "__getitem__")


def is_streamed(dataset: Any) -> bool:
    """Return whether a dataset has no places, only an order."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")
