"""The claims about parameters: every part is held, reduced, updated and written exactly once."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mimokit.architecture.from_config import modules_of_config
from mimokit.architecture.layers_on_stage import stage_tensors
from mimokit.architecture.tensor_cut import ShardPlace, TensorCut
from mimokit.architecture.tensors import module_tensors
from mimokit.axes import Axis, Choice
from mimokit.config import ExperimentConfig
from mimokit.planning.ranks import ModuleRanks, RankGrid
from mimokit.planning.types import LayoutPlan


def unheld_parts(plan: LayoutPlan, config: ExperimentConfig) -> Iterator[str]:
    """Yield tensors of which some entry is on no rank of a replica, or on ranks of two stages."""
    for module in modules_of_config(config.model):
        ranks, execution = plan.modules[module.name], plan.executions[module.name]
        stages = execution.size(Axis.PIPELINE)
        on = [stage_tensors(module, execution.sizes, stage) for stage in range(stages)]
        held = [row.name for rows in on for row in rows if row.copy_of is None]
        for row in module_tensors(module):
            times = held.count(row.name) if row.copy_of is None else 1
            if times != 1:
                yield f"module {module.name!r}: {times} stages have {row.name}"
                return
        places = _places(ranks)
        for cut in dict.fromkeys(row.cut for rows in on for row in rows):
            fault = _cut_fault(cut, ranks, places)
            if fault:
                yield f"module {module.name!r}: of a tensor {list(cut.whole)} {fault}"
                return


def _places(ranks: ModuleRanks) -> set[ShardPlace]:
    experts = ranks.expert_view()
    own = np.hstack(
        [
            coordinates(ranks, (Axis.TENSOR,)),
            coordinates(experts, (Axis.EXPERT_TENSOR, Axis.EXPERT)),
        ]
    )
    first = np.unique(own[: ranks.ranks_per_stage], axis=0, return_index=True)[1]
    places = (ranks.shard_place(ranks.rank_offset + index) for index in first.tolist())
    return {replace(place, replica=0, expert_replica=0) for place in places}


def _cut_fault(cut: TensorCut, ranks: ModuleRanks, places: set[ShardPlace]) -> str:
    expert = cut.expert is not None
    if expert and cut.experts % ranks.expert_parallel:
        return f"{ranks.expert_parallel} ranks cannot share {cut.experts} experts"
    parts = ranks.expert_tensor_parallel if expert else ranks.tensor_parallel
    if not cut.divides(parts):
        return f"{parts} ranks cannot have equal parts"
    covered = np.zeros(1 if cut.dimension is None else cut.whole[cut.dimension], np.int64)
    seen = set()
    for shard in (cut.at(place) for place in places):
        number = shard.place.expert_tensor_rank if expert else shard.place.tensor_rank
        if not shard.is_held or number in seen:
            continue
        seen.add(number)
        for rectangle in shard.rectangles:
            axis = cut.dimension
            start, length = (
                (0, 1) if axis is None else (rectangle.whole[axis], rectangle.shape[axis])
            )
            covered[start : start + length] += 1
    if not seen:
        return "no rank has any of it"
    if (covered == 0).any():
        return f"entry {np.flatnonzero(covered == 0)[0]} along its cut is on no rank"
    if cut.dimension is not None and (covered > 1).any():
        return f"entry {np.flatnonzero(covered > 1)[0]} along its cut is on several ranks"
    return ""


def unreduced_parts(plan: LayoutPlan) -> Iterator[str]:
    """Yield ranks with the same part of the weights that do not reduce its gradient together.

    A part is given by the place along tensor parallelism and pipeline, of experts by that along
    expert parallelism as well. Each is reduced over context and data parallel ranks, which together
    compute all samples and positions, and written by the first of them.
    """
    for name, ranks in plan.modules.items():
        views = (
            (ranks, (Axis.CONTEXT, Axis.DATA), (Axis.TENSOR, Axis.PIPELINE)),
            (
                ranks.expert_view(),
                (Axis.EXPERT_DATA,),
                (Axis.EXPERT_TENSOR, Axis.EXPERT, Axis.PIPELINE),
            ),
        )
        for grid, summed, place in views:
            groups = grid.group_array(*map(str, summed))
            index = groups.reshape(-1) - grid.rank_offset
            if not np.array_equal(np.sort(index), np.arange(grid.size)):
                yield f"module {name!r}: gradients of some ranks are not reduced"
                continue
            parts = coordinates(grid, place)[index].reshape(*groups.shape, -1)
            if (parts != parts[:, :1]).any():
                yield f"module {name!r}: ranks that reduce together have different parts"
            if len(np.unique(parts[:, 0], axis=0)) != len(groups):
                yield f"module {name!r}: a part is reduced in several groups"
        yield from _sharded_states(plan, ranks)


def coordinates(grid: RankGrid, axes: tuple[Axis, ...]) -> np.ndarray:
    """Return the coordinates of every rank of a grid along some axes, [ranks, axes]."""
    coordinates = np.unravel_index(np.arange(grid.size), grid.shape[::-1])[::-1]
    return np.stack([coordinates[grid.dimensions.index(str(axis))] for axis in axes], -1)


def _sharded_states(plan: LayoutPlan, ranks: ModuleRanks) -> Iterator[str]:
    execution = plan.executions[ranks.module]
    if not execution.sizes.distributed_optimizer:
        return
    sharing = ranks.context_parallel * ranks.data_parallel
    instances = execution.size(Choice.OPTIMIZER_INSTANCES)
    if sharing % instances:
        yield (
            f"module {ranks.module!r}: {instances} instances of the optimizer "
            f"do not divide {sharing} ranks"
        )
