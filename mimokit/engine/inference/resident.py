"""Models that stay loaded on a rank between the calls of their owner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist

from mimokit.engine.inference.language import LanguageShard


@dataclass(frozen=True)
class Resident:
    """A model on this rank.

    Attributes:
        shard: the model.
        world: in which its group was made.
    """

    shard: LanguageShard
    world: object


_residents: dict[str, Resident] = {}


def resident(name: str, load: Callable[[], LanguageShard]) -> LanguageShard:
    """Return a model, loaded again if its world has ended. Collective.

    Args:
        name: of the model.
        load: makes its group, and loads it.
    """
    held = _residents.get(name)
    if held is None or held.world is not dist.group.WORLD:
        _residents.pop(name, None)
        held = _residents[name] = Resident(load(), dist.group.WORLD)
    return held.shard


def release(name: str) -> None:
    """Forget a model."""
    _residents.pop(name, None)
