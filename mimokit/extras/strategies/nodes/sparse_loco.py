"""SparseLoCo: the largest entries of what local steps changed, in two bits, with error feedback."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from mimokit.config.strategy import StrategyConfig
from mimokit.extras.strategies.exchanges import Exchange
from mimokit.extras.strategies.exchanges.sizes import INDEX_BYTES, SCALE_BYTES, kept_of_chunk
from mimokit.extras.strategies.nodes import communicate
from mimokit.extras.strategies.nodes.buckets import Bucket
from mimokit.extras.strategies.nodes.codecs import decode, encode
from mimokit.extras.strategies.nodes.modules import CommunicateOptimizeStrategy, PlannedModule
from mimokit.extras.strategies.nodes.optim import OptimSpec


class SparseOuterCommunicator(PlannedModule):
    """Sends the largest entries per chunk of the residual, which is what was not sent before."""

    def _init_node(self, model: nn.Module, rank: int, num_nodes: int) -> None:
        super()._init_node(model, rank, num_nodes)
        self._weights = list(self.parameters.values())
        self._bucket = Bucket(self._weights)
        self._bucket.fill(self._weights)
        self.outer = self._bucket.flat.clone()
        self.residual = torch.zeros_like(self.outer, dtype=torch.float32)

    def kept_tensors(self) -> dict[str, Tensor]:
        """Return the outer weights and the residual of all tensors."""
        return {"outer": self.outer, "residual": self.residual}

    @torch.no_grad()
    def begin(self, exchange: Exchange) -> list[Tensor]:
        """Return the bytes of all nodes."""
        config = self.plan.config
        self._bucket.fill(self._weights)
        self.residual.mul_(config.decay).add_(self.outer - self._bucket.flat)
        parts = []
        for rows in self._rows(self.residual):
            kept = kept_of_chunk(rows.shape[1], config.density)
            places = rows.abs().topk(kept, dim=1).indices
            values = encode(rows.gather(1, places), config.bits)
            rows.scatter_add_(1, places, -decode(values, config.bits, kept))
            short = places.to(torch.int16).view(torch.uint8)
            parts.append(torch.cat([short, values], dim=1).view(-1))
        message = torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)
        every = [torch.empty_like(message) for _ in range(self.num_nodes)]
        return communicate.all_gather(every, message)

    @torch.no_grad()
    def finish(self, exchange: Exchange, taken: list[Tensor]) -> None:
        """Step the outer weights by the mean, and go on from them."""
        total = torch.zeros_like(self.residual)
        for packed in taken:
            self._add(total, packed)
        self.outer.sub_(total / self.num_nodes, alpha=self.plan.config.outer_lr)
        self._bucket.flat.copy_(self.outer)
        self._bucket.write(self._weights)

    def _add(self, total: Tensor, packed: Tensor) -> None:
        config = self.plan.config
        start = 0
        for rows in self._rows(total):
            kept = kept_of_chunk(rows.shape[1], config.density)
            width = kept * INDEX_BYTES + SCALE_BYTES + math.ceil(kept * config.bits / 8)
            part = packed[start : start + len(rows) * width].view(len(rows), width)
            start += part.numel()
            short = part[:, : kept * INDEX_BYTES].flatten().clone().view(torch.int16)
            places = short.view(len(rows), kept)
            values = decode(part[:, kept * INDEX_BYTES :], config.bits, kept)
            rows.scatter_add_(1, places.to(torch.int64) & 0xFFFF, values)

    def _rows(self, flat: Tensor) -> list[Tensor]:
        """Return views of a flat buffer: [chunks, entries] of each tensor, then its last chunk."""
        chunk, rows = self.plan.config.chunk, []
        for part in flat.split_with_sizes([weight.numel() for weight in self._weights]):
            whole = part.numel() // chunk * chunk
            if whole:
                rows.append(part[:whole].view(-1, chunk))
            if part.numel() > whole:
                rows.append(part[whole:].view(1, -1))
        return rows


class SparseLoCoStrategy(CommunicateOptimizeStrategy):
    """SparseLoCo (arXiv 2508.15706): no outer momentum; the residual takes its place."""

    def __init__(
        self,
        optim_spec: str | OptimSpec | None = None,
        H: int = 100,
        density: float = 0.02,
        chunk: int = 4096,
        bits: int = 2,
        decay: float = 0.95,
        outer_lr: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__([SparseOuterCommunicator()], optim_spec=optim_spec, **kwargs)
        self.config = StrategyConfig(
            name="sparse_loco", H=H, density=density, chunk=chunk, bits=bits, decay=decay,
            outer_lr=outer_lr,
        )  # fmt: skip
