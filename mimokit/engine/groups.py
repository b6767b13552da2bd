"""Lets go of the process groups that a model made, so that a world can hold many models in turn."""

from __future__ import annotations

import torch.distributed as dist


def open_groups() -> frozenset[dist.ProcessGroup]:
    """Return the process groups of this rank."""
    return frozenset(dist.distributed_c10d._world.pg_map)


def close_groups_since(before: frozenset[dist.ProcessGroup]) -> None:
    """Destroy the groups that were made since `before`, once every rank has got here. Collective.

    torch.distributed keeps every group until the world ends, and gloo three threads for each: a
    layout on 8 ranks makes about 30. Their threads end when nobody holds the groups any more.
    """
    dist.barrier()
    made = [group for group in dist.distributed_c10d._world.pg_map if group not in before]
    for group in made:
        dist.destroy_process_group(group)
