"""What trains on a node: tensors by name, a shard of a model, and one flat buffer for many tensors.

What is chosen for whole tensors (masks, fragments) is chosen alike on all nodes that hold parts of
them, and does not depend on how they are cut.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from mimokit.architecture.tensor_cut import Shape, TensorShard
from mimokit.extras.strategies.exchanges.masks import Indices


def common_dtype(tensors: Iterable[Tensor]) -> torch.dtype:
    """Return the type in which tensors are summed: fp32, or fp64 if one of them has it."""
    wide = any(tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if wide else torch.float32


def trainable(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that train, by name; a tied one once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


class Bucket:
    """A flat buffer of `common_dtype`, so that an exchange of many tensors is one collective."""

    def __init__(self, tensors: Sequence[Tensor], extra: int = 0) -> None:
        """Take as many entries as the tensors have, and `extra` ones behind them."""
        sizes = [tensor.numel() for tensor in tensors]
        device = tensors[0].device if tensors else torch.device("cpu")
        self.flat = torch.zeros(sum(sizes) + extra, dtype=common_dtype(tensors), device=device)
        parts = self.flat[: sum(sizes)].split_with_sizes(sizes) if sizes else ()
        starts = [end - size for size, end in zip(sizes, accumulate(sizes), strict=True) if size]
        self.firsts = torch.tensor(starts, dtype=torch.int64, device=device)
        self.views = [part.view(like.shape) for part, like in zip(parts, tensors, strict=True)]

    @torch.no_grad()
    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copy tensors into the buffer."""
        for view, tensor in zip(self.views, tensors, strict=True):
            view.copy_(tensor)

    @torch.no_grad()
    def write(self, tensors: Sequence[Tensor]) -> None:
        """Copy the buffer into tensors; they share no memory with it."""
        for view, tensor in zip(self.views, tensors, strict=True):
            tensor.copy_(view)


class Shard(nn.Module):
    """The part of a model that trains on a node, where several nodes share a model.

    Attributes:
        whole: shapes of all tensors that train on any node, in one order on all nodes.
    """

    def __init__(
        self,
        named: Mapping[str, nn.Parameter],
        shards: Mapping[str, TensorShard],
        whole: Mapping[str, Shape],
    ) -> None:
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


def shapes_of(model: nn.Module, trainable: Mapping[str, nn.Parameter]) -> dict[str, Shape]:
    """Return the shapes of the tensors that a plan is made for: those of the whole model."""
    if isinstance(model, Shard):
        return model.whole
    return {name: tuple(weight.shape) for name, weight in trainable.items()}
