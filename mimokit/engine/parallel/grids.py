"""Builds Megatron's grids and process groups from the rank maps of the plan.

Creating a group is collective: every rank of the world creates every group of every module, in
the same order, including groups without it.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch.distributed as dist

from mimokit.axes import GRID_AXES, Axis, Choice
from mimokit.engine.device import group_timeout
from mimokit.engine.megatron import HyperCommGrid, ProcessGroupCollection
from mimokit.planning.ranks import ModuleRanks, RankGrid
from mimokit.planning.types import LayoutPlan

_GROUPS: Mapping[str, tuple[Axis, ...]] = {
    **{str(axis): (axis,) for axis in GRID_AXES},
    "mp": (Axis.TENSOR, Axis.PIPELINE),
    "tp_cp": (Axis.TENSOR, Axis.CONTEXT),
    "dp_cp": (Axis.CONTEXT, Axis.DATA),
    "tp_dp_cp": (Axis.TENSOR, Axis.CONTEXT, Axis.DATA),
}
_EXPERT_GROUPS: Mapping[str, tuple[Axis, ...]] = {
    **{str(axis): (axis,) for axis in (Axis.EXPERT, Axis.EXPERT_TENSOR, Axis.EXPERT_DATA)},
    "tp_ep": (Axis.EXPERT_TENSOR, Axis.EXPERT),
    "tp_ep_pp": (Axis.EXPERT_TENSOR, Axis.EXPERT, Axis.PIPELINE),
}
"""Field of Megatron's `ProcessGroupCollection` -> the axes that its groups span."""


Enumeration: TypeAlias = tuple[tuple[int, ...], ...]
"""The ranks of every group of a kind."""


class GroupSharingGrid(HyperCommGrid):  # type: ignore[misc]
    """A grid in which dimensions whose groups have the same ranks share one process group.

    A module without context and pipeline parallelism has 13 kinds of groups but at most 4 different
    sets of ranks. Every gloo group costs three threads, of which one polls, and a connection
    between any two of its ranks.

    Args:
        groups: the groups that exist already, by their ranks; takes those that are made.
    """

    def __init__(
        self, ranks: RankGrid, groups: dict[Enumeration, dist.ProcessGroup | None]
    ) -> None:
        super().__init__(list(ranks.shape), list(ranks.dimensions), rank_offset=ranks.rank_offset)
        self._groups = groups
        self._group_of: dict[frozenset[str], dist.ProcessGroup | None] = {}

    def create_pg(self, dims: str | list[str], **kwargs: Any) -> dist.ProcessGroup | None:
        """Create the groups of some dimensions where no others have the same ranks. Collective."""
        ranks = tuple(tuple(group) for group in self.get_rank_enum(dims))
        if ranks not in self._groups:
            self._groups[ranks] = super().create_pg(dims, **kwargs)
        self._group_of[_key(dims)] = self._groups[ranks]
        return self._groups[ranks]

    def get_pg(self, dims: str | list[str]) -> dist.ProcessGroup | None:
        """Return the group of this rank over some dimensions, None on a rank outside the grid.

        Raises:
            KeyError: if it was not created.
        """
        return self._group_of[_key(dims)]


def _key(dims: str | list[str]) -> frozenset[str]:
    return frozenset([dims] if isinstance(dims, str) else dims)


def create_module_grids(rank_map: ModuleRanks) -> tuple[HyperCommGrid, HyperCommGrid]:
    """Create the grid of a module and its expert view, with all their groups. Collective.

    The expert view is over the same ranks: expert TP, EP, what is left is expert DP.
    """
    groups: dict[Enumeration, dist.ProcessGroup | None] = {}
    grid = GroupSharingGrid(rank_map, groups)
    for dimensions in _GROUPS.values():
        grid.create_pg(list(dimensions), timeout=group_timeout())
    experts = GroupSharingGrid(rank_map.expert_view(), groups)
    for dimensions in _EXPERT_GROUPS.values():
        experts.create_pg(list(dimensions), timeout=group_timeout())
    return grid, experts


def create_instance_groups(
    rank_map: ModuleRanks, instances: int
) -> dict[str, dist.ProcessGroup | None]:
    """Create the groups that shard states of an optimizer, and those between equal shards.

    Collective. Neighbours share an instance, as Megatron has it, so that ranks with the same place
    in each instance are the same ones for experts as for all else.

    Returns:
        Field of Megatron's `ProcessGroupCollection` -> the group of this rank.
    """
    groups: dict[str, dist.ProcessGroup | None] = {}
    made: dict[Enumeration, dist.ProcessGroup | None] = {}
    replicas = {
        "intra_dp_cp": rank_map.size_of(Axis.CONTEXT, Axis.DATA),
        "intra_expt_dp": rank_map.expert_view().size_of(Axis.EXPERT_DATA),
    }
    for name, number in replicas.items():
        places = rank_map.ranks_per_stage // number
        shape = (places, number // instances, instances, rank_map.pipeline_parallel)
        view = RankGrid(("place", "shard", "instance", "stage"), shape, rank_map.rank_offset)
        grid = GroupSharingGrid(view, made)
        groups[name] = grid.create_pg("shard", timeout=group_timeout())
        groups["inter_dist_opt"] = grid.create_pg("instance", timeout=group_timeout())
    return groups


def create_embedding_group(rank_map: ModuleRanks) -> dist.ProcessGroup | None:
    """Create the groups of first and last rank of every pipeline of a module. Collective.

    Gradients of tied embeddings are summed over them. Returns the group of this rank, or None.
    """
    ends = [list(pair) for pair in zip(rank_map.stage(0), rank_map.stage(-1), strict=True)]
    group, _ = dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
        ends, timeout=group_timeout()
    )
    return group  # type: ignore[no-any-return]


def process_groups(
    grid: HyperCommGrid,
    expert_grid: HyperCommGrid,
    embedding: dist.ProcessGroup | None,
    instances: Mapping[str, dist.ProcessGroup | None] | None = None,
) -> ProcessGroupCollection:
    """Collect the groups of this rank in the form Megatron's modules take.

    Args:
        embedding: see `create_embedding_group`; None in a module that needs none.
        instances: see `create_instance_groups`; None: there is one.
    """
    collection = ProcessGroupCollection(
        **{name: grid.get_pg(list(dimensions)) for name, dimensions in _GROUPS.items()},
        **{
            name: expert_grid.get_pg(list(dimensions))
            for name, dimensions in _EXPERT_GROUPS.items()
        },
        embd=embedding,
        pos_embd=None,
    )
    collection.intra_dp_cp = collection.dp_cp
    collection.intra_expt_dp = collection.expt_dp
    for name, group in (instances or {}).items():
        setattr(collection, name, group)
    return collection


def create_grids(
    plan: LayoutPlan,
) -> tuple[dict[str, HyperCommGrid], dict[str, ProcessGroupCollection]]:
    """Create the grids and process groups of every module of the plan. Collective.

    In homogeneous mode all modules share one grid.

    Returns:
        module_to_grid_map and, for the modules this rank takes part in, pg_collections.
    """
    grids: dict[str, HyperCommGrid] = {}
    collections: dict[str, ProcessGroupCollection] = {}
    shared: dict[tuple[object, ...], str] = {}
    for name, rank_map in plan.modules.items():
        instances = plan.executions[name].size(Choice.OPTIMIZER_INSTANCES)
        key = plan.groups_key(name)
        if key in shared:
            grids[name] = grids[shared[key]]
            if shared[key] in collections:
                collections[name] = collections[shared[key]]
            continue
        shared[key] = name
        grids[name], expert_grid = create_module_grids(rank_map)
        embedding = create_embedding_group(rank_map) if plan.has_embedding_group(name) else None
        several = create_instance_groups(rank_map, instances) if instances > 1 else None
        if is_current_rank_in_grid(dist.get_rank(), grids[name]):
            collections[name] = process_groups(grids[name], expert_grid, embedding, several)
    return grids, collections


def is_current_rank_in_grid(rank: int, grid: HyperCommGrid) -> bool:
    """Return whether a rank of the world takes part in the module of a grid."""
    return bool(grid.rank_offset <= rank < grid.rank_offset + int(grid.size))


def participating(grids: Mapping[str, HyperCommGrid]) -> list[str]:
    """Return the modules that the current rank takes part in, in the order of the plan."""
    rank = dist.get_rank()
    return [name for name, grid in grids.items() if is_current_rank_in_grid(rank, grid)]
