"""The pieces of whole tensors in which strategies choose and round what they send.

SparseLoCo and DeMo choose the largest numbers of a chunk or block of what a rank holds, and a codec
has a scale per block, so their result depends on how tensor parallelism cuts tensors. One process
takes the same pieces: it cuts its whole tensors as the ranks of the layout do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import scipy.fft
import torch
from torch import Tensor

from mimokit.architecture.tensor_cut import TensorShard
from mimokit.planning.strategies.sizes import CODEC_BLOCK, chunk_lengths, demo_blocks

Named = Mapping[str, torch.nn.Parameter]

Shards = Mapping[str, Sequence[TensorShard]]
"""Tensor -> its different shards on the ranks of a layout."""

PADDING = -1
"""In place of a position: an entry of a piece that the whole tensor does not have."""


def positions_of(shard: TensorShard, whole: torch.Size) -> Tensor:
    """Return the positions in the flattened whole tensor of what a rank holds, in its shape."""
    positions = np.arange(whole.numel()).reshape(whole)
    return torch.from_numpy(shard.of(positions, PADDING))


def chunks_of(shard: Tensor, chunk: int) -> list[Tensor]:
    """Return the positions of each chunk of SparseLoCo: [entries]."""
    lengths = chunk_lengths(shard.numel(), chunk)
    return list(torch.split(shard.flatten(), lengths))


def block_rows(shard: Tensor, entries: int) -> Tensor:
    """Return the positions of each block of a codec: [blocks, entries], the last one padded."""
    missing = -shard.numel() % entries
    return torch.nn.functional.pad(shard.flatten(), (0, missing), value=PADDING).view(-1, entries)


def blocks_of(shard: Tensor, chunk: int) -> Iterator[Tensor]:
    """Yield the positions of each block of DeMo: [rows, columns], of a vector one row."""
    _, sides = demo_blocks(tuple(shard.shape), chunk)
    height, width = (1, *sides)[-2:]
    rows = 1 if shard.dim() < 2 else shard.shape[0]
    flat = shard.reshape(rows, -1)
    for row in range(0, flat.shape[0], height):
        for column in range(0, flat.shape[1], width):
            yield flat[row : row + height, column : column + width]


def cosine_transform(block: Tensor) -> Tensor:
    """Return the orthonormal DCT-II of a block along both sides."""
    return torch.from_numpy(scipy.fft.dctn(block.numpy(), norm="ortho"))


def from_cosines(coefficients: Tensor) -> Tensor:
    """Return the block of which these are the transform."""
    return torch.from_numpy(scipy.fft.idctn(coefficients.numpy(), norm="ortho"))


WholeNumbers = dict[str, Tensor]
"""Tensor -> the whole numbers that its entries became, flat; of one step."""


class LowBits:
    """Means in low bits over replicas, and what rounding has lost on each and in the means.

    Every rank of a replica rounds its shard in blocks: the change of its weights, and the mean over
    the replicas. Here one process rounds the same blocks of whole tensors.

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
        """Return flat numbers (and one for padding) in low bits, and leave what rounding loses."""
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
