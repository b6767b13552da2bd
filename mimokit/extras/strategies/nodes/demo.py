"""DeMo: an optimizer that sends the largest cosine coefficients of its momentum."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from mimokit.config.strategy import StrategyConfig
from mimokit.extras.strategies.exchanges.sizes import INDEX_BYTES, demo_blocks
from mimokit.extras.strategies.nodes import communicate
from mimokit.extras.strategies.nodes.buckets import common_dtype, trainable
from mimokit.extras.strategies.nodes.strategy import Strategy, are_absent

_Coefficients = tuple[Tensor, Tensor]
"""(places, values) of what a node sends of a tensor, both [blocks, kept]."""


class DeMo(torch.optim.Optimizer):
    """Decoupled momentum (arXiv 2411.19870); `step` is collective.

    A parameter that has a gradient on no node is left out by all; where some nodes lack it, they
    send marks, and the mean is that of the others.
    """

    def __init__(self, parameters: list[nn.Parameter], config: StrategyConfig, nodes: int) -> None:
        super().__init__([{"params": parameters}], {"lr": config.lr})
        self._config, self._nodes = config, nodes

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Send the largest coefficients of the residuals, and step by the sign of their mean."""
        pairs = [(weight, group["lr"]) for group in self.param_groups for weight in group["params"]]
        kind = common_dtype([weight for weight, _ in pairs])
        sent = [self._kept(weight, lr, self._blocks(weight), kind) for weight, lr in pairs]
        parts = [part for places, values in sent for part in (places.to(torch.int16), values)]
        message = torch.cat([part.reshape(-1).view(torch.uint8) for part in parts])
        heard = [torch.empty_like(message) for _ in range(self._nodes)]
        by_node = [_read(packed, sent) for packed in communicate.all_gather(heard, message)]
        for number, (weight, lr) in enumerate(pairs):
            cut = self._blocks(weight)
            there = [read[number] for read in by_node]
            absent = are_absent([values for _, values in there])
            present = [part for part, missing in zip(there, absent, strict=True) if not missing]
            if present:
                weight.mul_(1 - lr * self._config.weight_decay)
                step = cut.inverse(_mean(present, cut.entries)).sign()
                weight.sub_(step.to(weight.dtype), alpha=lr)

    def _blocks(self, weight: nn.Parameter) -> _Blocks:
        return tensor_blocks(tuple(weight.shape), self._config.compression_chunk)

    def _kept(
        self, weight: nn.Parameter, lr: float, cut: _Blocks, kind: torch.dtype
    ) -> _Coefficients:
        """Return places [blocks, kept] and values of what is sent, and take it off the residual."""
        kept = min(self._config.compression_topk, cut.entries)
        if weight.grad is None:
            places = torch.zeros(cut.count, kept, dtype=torch.int64, device=weight.device)
            return places, torch.full(places.shape, -0.0, dtype=kind, device=weight.device)
        state = self.state[weight]
        if not state:
            state["residual"] = torch.zeros_like(weight, dtype=kind)
        residual = state["residual"]
        residual.mul_(self._config.compression_decay).add_(weight.grad.to(kind), alpha=lr)
        coefficients = cut.transform(residual)
        places = coefficients.abs().topk(kept, dim=1).indices
        values = coefficients.gather(1, places) + 0.0  # turns -0.0 into 0.0
        sent = torch.zeros_like(coefficients).scatter_(1, places, values)
        residual.sub_(cut.inverse(sent))
        return places, values


class _Blocks:
    """A tensor as blocks of at most chunk x chunk entries, and their cosine transform."""

    def __init__(self, shape: tuple[int, ...], chunk: int) -> None:
        self._shape = shape
        self.count, self._sides = demo_blocks(shape, chunk)
        self.entries = math.prod(self._sides)

    def transform(self, tensor: Tensor) -> Tensor:
        """Return the coefficients, [blocks, entries]."""
        return self._along_sides(self._cut(tensor), inverse=False).reshape(self.count, self.entries)

    def inverse(self, coefficients: Tensor) -> Tensor:
        cut = coefficients.view(-1, *self._sides)
        return self._join(self._along_sides(cut, inverse=True)).reshape(self._shape)

    def _cut(self, tensor: Tensor) -> Tensor:
        if len(self._sides) == 1:
            return tensor.reshape(-1, *self._sides)
        a, b = self._sides
        rows = tensor.reshape(self._shape[0] // a, a, -1, b)
        return rows.transpose(1, 2).reshape(-1, a, b)

    def _join(self, cut: Tensor) -> Tensor:
        if len(self._sides) == 1:
            return cut
        a, b = self._sides
        return cut.view(self._shape[0] // a, -1, a, b).transpose(1, 2)

    def _along_sides(self, cut: Tensor, *, inverse: bool) -> Tensor:
        for place, side in enumerate(self._sides, start=1):
            matrix = cosines(side, cut.dtype, cut.device)
            matrix = matrix.T if inverse else matrix
            cut = torch.movedim(torch.movedim(cut, place, -1) @ matrix.T, -1, place)
        return cut


@lru_cache(maxsize=1024)
def tensor_blocks(shape: tuple[int, ...], chunk: int) -> _Blocks:
    """Return the blocks of a tensor."""
    return _Blocks(shape, chunk)


@lru_cache(maxsize=64)
def cosines(side: int, kind: torch.dtype, device: torch.device) -> Tensor:
    """Return the orthonormal matrix of the DCT-II: [frequency, place]."""
    places = torch.arange(side, dtype=torch.float64)
    matrix = torch.cos(math.pi * (places + 0.5) * places.unsqueeze(1) / side) * math.sqrt(2 / side)
    matrix[0] /= math.sqrt(2)
    return matrix.to(kind).to(device)


def _read(packed: Tensor, like: list[_Coefficients]) -> list[_Coefficients]:
    coefficients, start = [], 0
    for places, values in like:
        middle = start + places.numel() * INDEX_BYTES
        end = middle + values.nbytes
        # Copies, since a view in another type has to begin at a multiple of its size.
        short = packed[start:middle].clone().view(torch.int16).to(torch.int64) & 0xFFFF
        raw = packed[middle:end].clone().view(values.dtype)
        coefficients.append((short.view(places.shape), raw.view(values.shape)))
        start = end
    return coefficients


def _mean(parts: list[_Coefficients], entries: int) -> Tensor:
    """Return the mean per coefficient over those who sent it, [blocks, entries]; else 0.

    Who sends a 0 has nothing there: of a block with fewer other coefficients than are sent, which
    zeros are sent is arbitrary, and the mean must not depend on it.
    """
    places, values = parts[0]
    total = torch.zeros(len(places), entries, dtype=values.dtype, device=values.device)
    count = torch.zeros_like(total)
    for places, values in parts:
        total.scatter_add_(1, places, values)
        count.scatter_add_(1, places, (values != 0).to(values.dtype))
    return total / count.clamp(min=1)


class DeMoStrategy(Strategy):
    """DeMo on every node."""

    optim: DeMo

    def __init__(
        self,
        lr: float = 1e-3,
        compression_decay: float = 0.999,
        compression_topk: int = 32,
        compression_chunk: int = 64,
        weight_decay: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.config: StrategyConfig = StrategyConfig(
            name="demo", lr=lr, compression_decay=compression_decay, weight_decay=weight_decay,
            compression_topk=compression_topk, compression_chunk=compression_chunk,
        )  # fmt: skip

    def _init_node(self, model: nn.Module, rank: int, num_nodes: int) -> None:
        super()._init_node(model, rank, num_nodes)
        stepped = [weight for weight in trainable(model).values() if weight.numel()]
        self.optim = DeMo(stepped, self.config, num_nodes)
        self._setup_scheduler()

    def step(self) -> None:
        """Step, which communicates."""
        with self.ledger.counting("momentum"):
            self.optim.step()
        super().step()
