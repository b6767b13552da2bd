"""The functions for checkpoints that run on ranks; torch is imported there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mimokit.planning.ranks import DIMENSIONS, RankGrid
from mimokit.planning.weights.check_plan import CheckInput

if TYPE_CHECKING:
    from mimokit.engine.tensor_parallel.checking import PartDifference, Parts


def tensor_group(tensor_parallel: int) -> Any:
    """Return this rank's group of tensor parallel neighbours. Collective over the world."""
    import torch.distributed as dist

    from mimokit.engine.device import group_timeout

    world = dist.get_world_size()
    if tensor_parallel == 1:
        return None
    if tensor_parallel == world:
        return dist.group.WORLD
    made = [
        dist.new_group(range(first, first + tensor_parallel), timeout=group_timeout())
        for first in range(0, world, tensor_parallel)
    ]
    return made[dist.get_rank() // tensor_parallel]


@contextmanager
def _group(tensor_parallel: int) -> Iterator[Any]:
    """Yield this rank's tensor parallel group, and close it at the end."""
    from mimokit.engine.device import close_groups_since, open_groups

    before = open_groups()
    yield tensor_group(tensor_parallel)
    close_groups_since(before)


def check_rank(
    directory: str, sizes: tuple[int, int], dtype: str, given: CheckInput, oracle: Parts
) -> Mapping[str, PartDifference]:
    """Load this rank's shard, run it and compare its parts with the oracle's.

    Args:
        directory: of the checkpoint.
        sizes: tensor and pipeline parallel size.
        dtype: of loading.
        given: what the network is given.
        oracle: what one process computes.
    """
    import torch.distributed as dist

    from mimokit.engine.device import rank_device
    from mimokit.engine.tensor_parallel.checking import checked_shard, compared, parts_on_rank

    tensor, pipeline = sizes
    rank = dist.get_rank()
    stage = RankGrid(DIMENSIONS, (tensor, 1, 1, pipeline)).coordinates(rank)["pp"]
    device = rank_device()

    def receive(hidden: Any) -> Any:
        hidden = hidden.to(device)
        dist.recv(hidden, rank - tensor)
        return hidden

    def send(hidden: Any) -> None:
        dist.send(hidden.contiguous(), rank + tensor)

    with _group(tensor) as group:
        shard = checked_shard(
            directory,
            group,
            dtype,
            pipeline_parallel=pipeline,
            pipeline_rank=stage,
            device=device,
        )
        mine = parts_on_rank(
            shard,
            given,
            receive if stage else None,
            send if stage < pipeline - 1 else None,
        )
        return compared(shard, given, mine, oracle)
