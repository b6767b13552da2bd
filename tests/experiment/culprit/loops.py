"""Training loops that are not mimokit's: one process, DistributedDataParallel, and DTensor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import mimokit

SAMPLES, WIDTH = 8, 16

LOOPS = {"ddp": ("ddp", ""), "dtensor": ("dtensor", ""), "wrong": ("ddp", "scale")}
"""Name of a recording -> the kind of its loop, and a fault."""


class Network(torch.nn.Module):
    """Two layers with a norm behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Return a number for every entry of [samples, width]."""
        return self.norm(self.down(torch.nn.functional.gelu(self.up(given))))


def train(kind: str, folder: Path, rank: int, ranks: int, fault: str = "") -> None:
    """Take two steps; record both."""
    torch.manual_seed(1)
    model: Any = Network()
    given, wanted = torch.randn(2, SAMPLES, WIDTH)
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
        given, wanted = (one.chunk(ranks)[rank] for one in (given, wanted))
    elif kind == "dtensor":
        mesh = dist.init_device_mesh("cpu", (ranks,))
        parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if fault == "scale" and rank == 1:
        inner: Any = model.module
        inner.down.register_forward_hook(lambda module, args, output: output * 1.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mimokit.watch(model, folder, optimizer=optimizer, steps=2):
        for _ in range(2):
            optimizer.zero_grad()
            (model(given) - wanted).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    _, folder, rank, ranks, store = sys.argv
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(ranks)
    )
    for name, (kind, fault) in LOOPS.items():
        train(kind, Path(folder) / name, int(rank), int(ranks), fault)
