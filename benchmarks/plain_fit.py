"""A training loop of plain torch, alone in its file: spawned processes import nothing else.

`python -m benchmarks.plain_fit` spawns them, and prints how many seconds they took.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

NODES, STEPS, BATCH = 4, 60, 32
SMALL, LARGE = 384, 1024
"""Widths of the network."""


class Network(nn.Module):
    """A network of about 180,000 parameters, or of 1.1 million; returns its loss."""

    def __init__(self, width: int = SMALL) -> None:
        super().__init__()
        sizes = (64, width, width, 10)
        self.layers = nn.ModuleList(map(nn.Linear, sizes[:-1], sizes[1:]))

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the cross-entropy."""
        x, y = batch
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return nn.functional.cross_entropy(self.layers[-1](x), y)


def digits(count: int = 4096) -> TensorDataset:
    """Return noise in the shape of digits."""
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(count, 64, generator=draws)
    return TensorDataset(x, torch.randint(10, (count,), generator=draws))


def plain_loop(rank: int, steps: int, *, parallel: bool, width: int = SMALL) -> float:
    """Train as a user's loop does, and return the seconds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: nn.Module = Network(width)
    if parallel:
        model = DistributedDataParallel(model)
    optim = torch.optim.SGD(model.parameters(), lr=0.01)
    data = digits()
    sampler: Any = DistributedSampler(data, NODES, rank)
    done, begun = 0, time.perf_counter()
    while True:
        for batch in DataLoader(data, BATCH, sampler=sampler):
            optim.zero_grad()
            model(batch).backward()
            optim.step()
            done += 1
            if done == steps:
                return time.perf_counter() - begun


def spawned(rank: int, port: int) -> None:
    """Train in a process that was started for it."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=NODES)
    plain_loop(rank, STEPS, parallel=True)
    dist.destroy_process_group()


def seconds_spawned() -> float:
    """Return how long processes take to start and train."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    begun = time.perf_counter()
    mp.spawn(spawned, (port,), NODES)
    return time.perf_counter() - begun


if __name__ == "__main__":
    print(seconds_spawned())
