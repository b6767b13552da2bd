"""`Shard`: the part of a model that a node trains, where the model is spread over several nodes.

What is chosen for whole tensors (masks, fragments) is chosen alike on all nodes that hold parts of
them, and does not depend on how they are cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from mimokit.planning.strategies.draws import Indices
from mimokit.planning.strategies.fragments import Shape


@dataclass(frozen=True)
class Cut:
    """Which part of a whole tensor a shard is.

    Attributes:
        whole: shape of the whole tensor, without the padding of its last shards.
        holders: into how many shards; 1: not at all.
        parts: the tensor consists of so many parts, of each of which every shard has a share.
    """

    whole: Shape
    shard: Shape
    axis: int = 0
    holders: int = 1
    number: int = 0
    parts: int = 1

    def places(self, whole: Indices) -> Indices:
        """Return the ascending places in the flattened shard of places in the flattened tensor."""
        if self.holders == 1:
            return whole
        inner = math.prod(self.whole[self.axis + 1 :])
        length, share = self.shard[self.axis], self.shard[self.axis] // self.parts
        outer, rest = np.divmod(whole, self.whole[self.axis] * inner)
        along, within = np.divmod(rest, inner)
        part, along = np.divmod(along, share * self.holders)
        holder, along = np.divmod(along, share)
        there = (outer * length + part * share + along) * inner + within
        mine: Indices = there[holder == self.number]
        return mine


class Shard(nn.Module):
    """The tensors that train on a node, by their names in the whole model.

    Attributes:
        whole: shapes of all tensors that train on any node, in one order on all nodes.
    """

    def __init__(
        self, named: Mapping[str, nn.Parameter], cuts: Mapping[str, Cut], whole: Mapping[str, Shape]
    ) -> None:
        """Take the tensors of the node, how they are cut, and the shapes of the whole model."""
        super().__init__()
        self._named, self._cuts, self.whole = dict(named), dict(cuts), dict(whole)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Return name and tensor of each."""
        yield from self._named.items()

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Return the tensors."""
        yield from self._named.values()

    def places(self, name: str, whole: Indices) -> Indices:
        """Return which entries of the whole tensor the node has, counted in its flattened shard."""
        return self._cuts[name].places(whole)


def parts_with_blocks(model: nn.Module, tensors: Sequence[Tensor]) -> list[int]:
    """Return the lengths of the parts of a bucket that are cut into blocks one by one.

    Of a shard each tensor is a part: nodes of a replica that hold a tensor alike, next to different
    ones, have to round it alike.
    """
    sizes = [one.numel() for one in tensors]
    return sizes if isinstance(model, Shard) else [sum(sizes)]


def shapes_of(model: nn.Module, trainable: Mapping[str, nn.Parameter]) -> dict[str, Shape]:
    """Return the shapes of the tensors that a plan is made for: those of the whole model."""
    if isinstance(model, Shard):
        return model.whole
    return {name: tuple(one.shape) for name, one in trainable.items()}
