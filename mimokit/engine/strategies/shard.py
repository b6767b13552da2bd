"""`Shard`: the part of a model that a node trains, where the model is spread over several nodes.

What is chosen for whole tensors (masks, fragments) is chosen alike on all nodes that hold parts of
them, and does not depend on how they are cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from mimokit.architecture.tensor_cut import Shape, TensorShard
from mimokit.planning.strategies.draws import Indices


class Shard(nn.Module):
    """The tensors that train on a node, by their names in the whole model.

    Attributes:
        whole: shapes of all tensors that train on any node, in one order on all nodes.
    """

    def __init__(
        self,
        named: Mapping[str, nn.Parameter],
        shards: Mapping[str, TensorShard],
        whole: Mapping[str, Shape],
    ) -> None:
        """Take the tensors of the node, what they are of the whole model, and its shapes."""
        super().__init__()
        self._named, self._shards, self.whole = dict(named), dict(shards), dict(whole)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Return name and tensor of each."""
        yield from self._named.items()

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Return the tensors."""
        yield from self._named.values()

    def places(self, name: str, whole: Indices) -> Indices:
        """Return which entries of the whole tensor the node has, counted in its flattened shard."""
        return self._shards[name].places(whole)


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
