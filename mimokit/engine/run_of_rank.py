"""What a rank is told of a run, and the world of its replica, in which it runs that.

The ranks of all replicas form one world. Inside `in_replica` the default process group of a rank
is its replica, so that everything that runs a layout runs in it as in a world of one replica. The
group of peers does not belong to that world: only strategies use it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, ProcessGroup, ProcessGroupGloo

from mimokit.config import ExperimentSections
from mimokit.config.user_code import NO_CODE, UserCode
from mimokit.engine.data.sources import DataSource, default_data
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


@dataclass(frozen=True)
class RunOfRank:
    """What a rank is told of a run.

    Attributes:
        plan: of the replica that the rank belongs to.
        source: makes the data, on every rank.
        code: what of the run is the user's.
        peers: of this rank in other replicas; None: the layout has one.
    """

    plan: LayoutPlan
    config: ExperimentSections
    source: DataSource = default_data
    code: UserCode = NO_CODE
    peers: Peers | None = None

    @classmethod
    def with_code(cls, plan: LayoutPlan, config: ExperimentSections, code: UserCode) -> "RunOfRank":
        """Return a run on the data of the user, if the code has them."""
        return cls(plan, config, code.data or default_data, code)


@contextmanager
def in_replica(
    plan: LayoutPlan, config: ExperimentSections, code: UserCode = NO_CODE
) -> Iterator[RunOfRank]:
    """Make the replica of this rank its world until the end of the block. Collective.

    Yields what the rank runs there. Without replicas nothing changes, and there are no peers. After
    an error the world is left as it is, since every rank leaves it.
    """
    run, replicas = RunOfRank.with_code(plan, config, code), plan.replicas
    if replicas is None:
        yield run
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
    yield replace(run, plan=plan.of_replica(replica), peers=Peers(replicas, replica, peers))
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
