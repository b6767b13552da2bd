"""Means in low bits over replicas, by plain arithmetic.

Every rank of a replica rounds its shard in blocks: the change of its weights, and the mean over the
replicas. One process rounds the same blocks of its whole tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mimokit.architecture.tensor_cut import TensorShard
from mimokit.engine.verify.strategies.outer_step import Named
from mimokit.engine.verify.strategies.pieces import Shards, block_rows, positions_of
from mimokit.planning.strategies.sizes import CODEC_BLOCK

WholeNumbers = dict[str, Tensor]
"""Tensor -> the whole numbers that its entries became, flat; of one step."""


class LowBits:
    """What rounding has lost on every replica, and in the means.

    Args:
        models: the tensors of each replica that train, by name.

    Attributes:
        sent: what the changes of each replica became.
        sums: what the means became.
    """

    def __init__(self, bits: int, models: Sequence[Named], shards: Shards) -> None:
        self._most = 2 ** (bits - 1) - 1
        # One more entry than a tensor has: what is read and written for padding, -1.
        self._lost = [{name: _zeros(one) for name, one in model.items()} for model in models]
        self._lost_of_means = {name: _zeros(one) for name, one in models[0].items()}
        self._blocks = {name: _blocks(one, shards[name]) for name, one in models[0].items()}
        self.sent: list[WholeNumbers] = [{} for _ in models]
        self.sums: WholeNumbers = {}

    def begin_step(self) -> None:
        """Forget the whole numbers of the last step."""
        for one in (*self.sent, self.sums):
            one.clear()

    def mean(self, name: str, changes: Sequence[Tensor]) -> Tensor:
        """Return the mean of the changes of a tensor on all replicas."""
        total = torch.zeros_like(self._lost_of_means[name])
        for lost, change, sent in zip(self._lost, changes, self.sent, strict=True):
            lost[name][:-1] += change.flatten()
            total += self._rounded(name, lost[name], sent)
        self._lost_of_means[name] += total / len(changes)
        mean = self._rounded(name, self._lost_of_means[name], self.sums)
        return mean[:-1].view(changes[0].shape)

    def _rounded(self, name: str, numbers: Tensor, found: WholeNumbers) -> Tensor:
        """Return numbers in low bits, and leave what rounding loses.

        Args:
            numbers: flat, with one entry for padding.
        """
        blocks = self._blocks[name]
        rows = numbers[blocks]
        scales = rows.abs().amax(dim=1, keepdim=True) / self._most
        multiples = rows / scales.where(scales > 0, 1)
        # Not every entry is in a block: that for padding may be in none.
        whole, sent = torch.zeros_like(numbers), torch.zeros_like(numbers)
        whole[blocks] = multiples.round().clamp(-self._most, self._most)
        sent[blocks] = whole[blocks] * scales
        numbers -= sent
        found[name] = whole[:-1].to(torch.int8)
        return sent


def _zeros(tensor: Tensor) -> Tensor:
    return torch.zeros(tensor.numel() + 1, device=tensor.device)


def _blocks(tensor: torch.nn.Parameter, shards: Sequence[TensorShard]) -> Tensor:
    """Return the positions of the blocks of all shards: [blocks, entries]."""
    positions = [positions_of(shard, tensor.shape) for shard in shards]
    return torch.cat([block_rows(one, CODEC_BLOCK) for one in positions]).to(tensor.device)
