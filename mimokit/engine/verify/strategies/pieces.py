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
from mimokit.config import StrategyConfig
from mimokit.planning.strategies.sizes import CODEC_BLOCK, chunk_lengths, demo_blocks, kept_of_chunk

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


def block_rows(shard: Tensor) -> Tensor:
    """Return the positions of each block of a codec: [blocks, entries], the last one padded."""
    padding = (0, -shard.numel() % CODEC_BLOCK)
    padded = torch.nn.functional.pad(shard.flatten(), padding, value=PADDING)
    return padded.view(-1, CODEC_BLOCK)


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
    return torch.from_numpy(scipy.fft.dctn(block.cpu().numpy(), norm="ortho")).to(block.device)


def from_cosines(coefficients: Tensor) -> Tensor:
    """Return the block of which these are the transform."""
    block = scipy.fft.idctn(coefficients.cpu().numpy(), norm="ortho")
    return torch.from_numpy(block).to(coefficients.device)


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
        # Positions of the blocks of all shards of a tensor: [blocks, entries].
        self._blocks: dict[str, Tensor] = {}
        for name, weight in models[0].items():
            blocks = [block_rows(positions_of(shard, weight.shape)) for shard in shards[name]]
            self._blocks[name] = torch.cat(blocks).to(weight.device)
        self.sent: list[WholeNumbers] = [{} for _ in models]
        self.sums: WholeNumbers = {}

    def begin_step(self) -> None:
        """Forget the whole numbers of the last step."""
        for numbers in (*self.sent, self.sums):
            numbers.clear()

    def mean(self, name: str, changes: Sequence[Tensor]) -> Tensor:
        """Return the mean of the changes of a tensor on all replicas."""
        total = torch.zeros_like(self._lost_of_means[name])
        for lost, change, sent in zip(self._lost, changes, self.sent, strict=True):
            lost[name][:-1] += change.flatten()
            total += self._rounded(name, lost[name], sent)
        self._lost_of_means[name] += total / len(changes)
        mean = self._rounded(name, self._lost_of_means[name], self.sums)
        return mean[:-1].view(changes[0].shape)

    def _rounded(self, name: str, numbers: Tensor, kept: WholeNumbers) -> Tensor:
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
        kept[name] = whole[:-1].to(torch.int8)
        return sent


def _zeros(tensor: Tensor) -> Tensor:
    return torch.zeros(tensor.numel() + 1, device=tensor.device)


ROUNDING = 1e-5
"""Difference that gradients and what follows from them may have in a layout, relative to the
largest number of a tensor: the tolerance of `verify`."""

SUMS = 4 * torch.finfo(torch.float32).eps
"""Rounding error of a weight over the steps between two exchanges, relative to the largest."""

FLOOR = 1e-3
"""Tensors whose numbers are all below this share of the largest of all are measured against it."""

Open = dict[str, Tensor]
"""Tensor -> which entries of the flattened whole tensor."""


class Choices:
    """SparseLoCo and DeMo between replicas: residuals, what is sent, and which choices are open.

    Both send the largest numbers of a piece, SparseLoCo in a few bits, and DeMo steps by a sign.
    Where two numbers are equal but for rounding, a layout may choose the other one, and is as
    right. Such entries are open: those of SparseLoCo whose magnitude is that of the last kept and
    of the first not kept, or whose value lies between two multiples of the scale; for DeMo all
    entries of a block with such coefficients, and entries whose step has no clear sign.

    Attributes:
        residuals: replica -> tensor -> what was not sent, flat.
    """

    def __init__(self, config: StrategyConfig, models: Sequence[Named], shards: Shards) -> None:
        self._config, self._models = config, models
        # One more entry than the tensor has: what is read and written for padding, -1.
        self.residuals = [{name: _zeros(one) for name, one in model.items()} for model in models]
        self._outer = {name: one.detach().flatten().clone() for name, one in models[0].items()}
        self._pieces = {
            name: [
                piece.to(one.device)
                for shard in shards[name]
                for piece in self._cut(positions_of(shard, one.shape))
            ]
            for name, one in models[0].items()
        }

    def _cut(self, shard: Tensor) -> list[Tensor]:
        config = self._config
        if config.name == "sparse_loco":
            return chunks_of(shard, config.chunk)
        return list(blocks_of(shard, config.compression_chunk))

    def outer_step(self) -> Open:
        """Step the outer weights by what SparseLoCo sends; return what is open."""
        config, open_entries = self._config, {}
        for model, residual in zip(self._models, self.residuals, strict=True):
            for name, weight in model.items():
                change = self._outer[name] - weight.detach().flatten()
                residual[name][:-1] = config.decay * residual[name][:-1] + change
        for name, pieces in self._pieces.items():
            total = torch.zeros_like(self.residuals[0][name])
            unclear = torch.zeros_like(total, dtype=torch.bool)
            for model, residual in zip(self._models, self.residuals, strict=True):
                largest = _largest(residual[name])
                rounding = ROUNDING * largest + SUMS * _largest(model[name])
                for piece in pieces:
                    sent, close = self._low_bits(residual[name][piece], rounding)
                    residual[name][piece] -= sent
                    total[piece] += sent
                    unclear[piece] |= close
            self._outer[name] -= config.outer_lr * total[:-1] / len(self._models)
            open_entries[name] = unclear[:-1]
            for model in self._models:
                model[name].copy_(self._outer[name].view(model[name].shape))
        return open_entries

    def _low_bits(self, numbers: Tensor, rounding: float) -> tuple[Tensor, Tensor]:
        """Return what SparseLoCo sends of a chunk, and which of its entries are open."""
        most = 2 ** (self._config.bits - 1) - 1
        kept = kept_of_chunk(len(numbers), self._config.density)
        chosen, close = largest_of(numbers, kept, rounding)
        scale = float(numbers.abs().max()) / most
        if scale == 0:
            return torch.zeros_like(numbers), close
        multiples = numbers / scale
        between = (multiples.abs() % 1 - 0.5).abs() <= 2 * rounding / scale
        sent = torch.where(chosen, multiples.round().clamp(-most, most) * scale, 0.0)
        return sent, close | (chosen & between)

    def step(self) -> Open:
        """Step all weights as DeMo does; return what is open."""
        config, open_entries = self._config, {}
        for model, residual in zip(self._models, self.residuals, strict=True):
            for name, weight in model.items():
                assert weight.grad is not None
                kept = config.compression_decay * residual[name][:-1]
                residual[name][:-1] = kept + config.lr * weight.grad.flatten()
        largest = {
            name: max(_largest(residual[name]) for residual in self.residuals)
            for name in self._pieces
        }
        smallest = FLOOR * max(largest.values())
        for name, pieces in self._pieces.items():
            rounding = ROUNDING * max(smallest, largest[name])
            update = torch.zeros_like(self.residuals[0][name])
            unclear = torch.zeros_like(update, dtype=torch.bool)
            for piece in pieces:
                update[piece], unclear[piece] = self._block(name, piece, rounding)
            open_entries[name] = unclear[:-1]
            for model in self._models:
                model[name].mul_(1 - config.lr * config.weight_decay)
                model[name].sub_(config.lr * update[:-1].sign().view(model[name].shape))
        return open_entries

    def _block(self, name: str, piece: Tensor, rounding: float) -> tuple[Tensor, Tensor]:
        """Take what DeMo sends of a block off the residuals; return its step, and what is open."""
        total, senders, tie = (*torch.zeros(2, *piece.shape, device=piece.device), False)
        for residual in self.residuals:
            coefficients = cosine_transform(residual[name][piece])
            kept = min(self._config.compression_topk, piece.numel())
            chosen, close = largest_of(coefficients, kept, rounding)
            sent = torch.where(chosen, coefficients, 0.0)
            residual[name][piece] -= from_cosines(sent)
            residual[name][PADDING] = 0  # stays 0 on ranks as well
            total, senders, tie = total + sent, senders + (sent != 0), tie or bool(close.any())
        update = from_cosines(total / senders.clamp(min=1))
        open_sign = (update.abs() <= rounding) & bool(total.any())
        return update, open_sign | tie


def largest_of(numbers: Tensor, kept: int, rounding: float) -> tuple[Tensor, Tensor]:
    """Return masks of the largest numbers by magnitude, and of those that may be as large.

    Numbers may differ by `rounding` in a layout.
    """
    sizes = numbers.abs().flatten()
    order = sizes.argsort(descending=True)
    chosen = torch.zeros_like(sizes, dtype=torch.bool)
    chosen[order[:kept]] = True
    if kept >= len(sizes):
        return chosen.view(numbers.shape), torch.zeros_like(chosen).view(numbers.shape)
    last, first = float(sizes[order[kept - 1]]), float(sizes[order[kept]])
    close = torch.where(chosen, sizes <= first + 2 * rounding, sizes >= last - 2 * rounding)
    # Numbers of 0 are the same, whichever is sent.
    close &= sizes > 0
    return chosen.view(numbers.shape), close.view(numbers.shape)


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max())
