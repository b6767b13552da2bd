"""The world of each replica of a layout, and the ranks of other replicas with the same shard.

The ranks of all replicas form one world. Inside `replica_world` the default process group of a rank
is its replica, so that everything that runs a layout runs in it as in a world of one replica. The
group of peers does not belong to that world: only strategies use it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, ProcessGroup, ProcessGroupGloo

from mimokit.engine.device import group_timeout, rank_device
from mimokit.planning.replicas import ReplicaPlan
from mimokit.planning.types import LayoutPlan
from mimokit.units import counted


@dataclass(frozen=True)
class Peers:
    """The ranks of all replicas with the shard of this rank; in their group each has its number."""

    plan: ReplicaPlan
    replica: int
    group: Any

    @property
    def first_rank(self) -> int:
        """The first rank of this replica in the world of all replicas."""
        return self.plan.ranks_of(self.replica).start

    def sum(self, tensor: torch.Tensor) -> None:
        """Sum a tensor over the peers, in place. Collective over them."""
        self.group.allreduce([tensor]).wait()


@contextmanager
def replica_world(plan: LayoutPlan) -> Iterator[tuple[LayoutPlan, Peers | None]]:
    """Make the replica of this rank its world until the end of the block. Collective.

    Yields the plan of the replica, and the peers of this rank. Without replicas nothing changes,
    and there are no peers. After an error the world is left as it is, since every rank leaves it.
    """
    replicas = plan.replicas
    if replicas is None:
        yield plan, None
        return
    rank, size = dist.get_rank(), dist.get_world_size()
    if size != replicas.world_size:
        raise ValueError(
            f"The plan is for {counted(replicas.world_size, 'rank')} but the world has {size}; "
            f"form a world of {counted(replicas.world_size, 'rank')}."
        )
    store: Any = dist.distributed_c10d._get_default_store()
    # Every rank counts the runs of this world alike; a store keeps the keys of earlier ones.
    number = store.add(f"replicas/{rank}", 1)
    replica, place = replicas.place(rank)
    timeout = group_timeout()
    between = PrefixStore(f"replicas/{number}/peers/{place}", store)
    peers = _group_of_peers(between, replica, replicas.replicas, timeout)
    _form(store, f"replicas/{number}/{replica}", place, replicas.layout_ranks)
    yield plan.of_replica(replica), Peers(replicas, replica, peers)
    _form(store, f"replicas/{number}/all", rank, size)


def _group_of_peers(store: Any, replica: int, replicas: int, timeout: timedelta) -> Any:
    """Return a process group that does not belong to a world. Collective over the peers.

    gloo takes tensors on GPUs too, and copies them.
    """
    group = ProcessGroup(store, replica, replicas)
    gloo, kind = ProcessGroupGloo(store, replica, replicas, timeout), ProcessGroup.BackendType.GLOO
    for device in {"cpu", rank_device().type}:
        group._register_backend(torch.device(device), kind, gloo)
    group._set_default_backend(kind)
    return group


def _form(store: Any, name: str, rank: int, size: int) -> None:
    """Leave the world, and form another one with the same store. Collective over the new one."""
    backend, timeout = dist.get_backend_config(), group_timeout()
    if "nccl" not in backend:
        backend = "gloo"  # by its name alone, as torch warns about groups without a default
    dist.destroy_process_group()
    dist.init_process_group(
        backend, store=PrefixStore(name, store), rank=rank, world_size=size, timeout=timeout
    )
