"""SparseLoCo and DeMo between replicas, by plain arithmetic, and where their choices are open.

Both send the largest numbers of a piece, SparseLoCo in a few bits, and DeMo steps by a sign. Where
two numbers are equal but for rounding, a layout may choose the other one, and is as right. Such
entries are reported as open: those of SparseLoCo whose magnitude is that of the last kept and of
the first not kept, or whose value lies between two multiples of the scale; for DeMo all entries of
a block with such coefficients, and entries whose step has no clear sign.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mimokit.config import StrategyConfig
from mimokit.engine.verify.strategies.outer_step import Named
from mimokit.engine.verify.strategies.pieces import (
    Shards,
    blocks_of,
    chunks_of,
    cosine_transform,
    from_cosines,
    positions_of,
)
from mimokit.planning.strategies.sizes import kept_of_chunk

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
    """The residuals of all replicas, and what is sent of them.

    Args:
        models: the tensors of each replica that train, by name.

    Attributes:
        residuals: replica -> tensor -> what was not sent, flat.
    """

    def __init__(self, config: StrategyConfig, models: Sequence[Named], shards: Shards) -> None:
        self._config, self._models = config, models
        # One more entry than the tensor has: what is read and written for padding, -1.
        self.residuals = [
            {name: torch.zeros(one.numel() + 1) for name, one in model.items()} for model in models
        ]
        self._outer = {name: one.detach().flatten().clone() for name, one in models[0].items()}
        self._pieces = {
            name: [
                piece
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
        config, found = self._config, {}
        for model, residual in zip(self._models, self.residuals, strict=True):
            for name, one in model.items():
                change = self._outer[name] - one.detach().flatten()
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
            found[name] = unclear[:-1]
            for model in self._models:
                model[name].copy_(self._outer[name].view(model[name].shape))
        return found

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
        config, found = self._config, {}
        for model, residual in zip(self._models, self.residuals, strict=True):
            for name, one in model.items():
                assert one.grad is not None
                kept = config.compression_decay * residual[name][:-1]
                residual[name][:-1] = kept + config.lr * one.grad.flatten()
        smallest = FLOOR * max(_largest(one) for own in self.residuals for one in own.values())
        for name, pieces in self._pieces.items():
            rounding = ROUNDING * max(smallest, *(_largest(own[name]) for own in self.residuals))
            update = torch.zeros_like(self.residuals[0][name])
            unclear = torch.zeros_like(update, dtype=torch.bool)
            for piece in pieces:
                update[piece], unclear[piece] = self._block(name, piece, rounding)
            found[name] = unclear[:-1]
            for model in self._models:
                model[name].mul_(1 - config.lr * config.weight_decay)
                model[name].sub_(config.lr * update[:-1].sign().view(model[name].shape))
        return found

    def _block(self, name: str, piece: Tensor, rounding: float) -> tuple[Tensor, Tensor]:
        """Take what DeMo sends of a block off the residuals; return its step, and what is open."""
        total, senders, tie = torch.zeros(piece.shape), torch.zeros(piece.shape), False
        for residual in self.residuals:
            coefficients = cosine_transform(residual[name][piece])
            kept = min(self._config.compression_topk, piece.numel())
            chosen, close = largest_of(coefficients, kept, rounding)
            sent = torch.where(chosen, coefficients, 0.0)
            residual[name][piece] -= from_cosines(sent)
            total, senders, tie = total + sent, senders + (sent != 0), tie or bool(close.any())
        update = from_cosines(total / senders.clamp(min=1))
        open_sign = (update.abs() <= rounding) & bool(total.any())
        return update, open_sign | tie


def largest_of(numbers: Tensor, kept: int, rounding: float) -> tuple[Tensor, Tensor]:
    """Return masks of the largest numbers by magnitude, and of those that may be as large.

    Args:
        numbers: of a piece, of any shape.
        rounding: by how much numbers may differ in a layout.
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
