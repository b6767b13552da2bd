"""The claim about sizes: the ranks of a group give as much to each of their collectives."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from mimokit.architecture.from_config import modules_of_config
from mimokit.architecture.layers_on_stage import stage_tensors
from mimokit.architecture.modules import Module
from mimokit.architecture.tensor_cut import ShardPlace, TensorCut
from mimokit.axes import Axis
from mimokit.config import ExperimentConfig
from mimokit.planning.proof.parameters import coordinates
from mimokit.planning.proof.samples import ranges_of
from mimokit.planning.ranks import ModuleRanks, RankGrid
from mimokit.planning.types import LayoutPlan

Sizes = NDArray[np.int64]
"""A number per rank of a module."""

OF_SAMPLES = (Axis.TENSOR,), (Axis.CONTEXT,)
OF_EXPERT_SAMPLES = (Axis.EXPERT_TENSOR,), (Axis.EXPERT,)
OF_PARAMETERS = (Axis.CONTEXT, Axis.DATA)
OF_EXPERTS = (Axis.EXPERT_DATA,)


def unequal_sizes(plan: LayoutPlan, config: ExperimentConfig) -> Iterator[str]:
    """Yield groups whose ranks give tensors of different sizes to a collective.

    Ranks that share matrices, positions or experts exchange hidden states of their samples; ranks
    that reduce together, the gradients of their parameters. Tokens that experts exchange are as
    many as the router decides, and ranks say so to each other first.
    """
    for module in modules_of_config(config.model):
        ranks, batch = plan.modules[module.name], plan.batch.modules[module.name]
        samples = np.diff(ranges_of(batch.samples, np.array(ranks.ranks)))[:, 0]
        dense, expert = _entries(plan, module, ranks)
        experts = ranks.expert_view()
        what = f"of module {module.name!r}"
        for grid, groups in ((ranks, OF_SAMPLES), (experts, OF_EXPERT_SAMPLES)):
            for axes in groups:
                yield from _unequal(grid, axes, samples, f"samples {what}")
        yield from _unequal(ranks, OF_PARAMETERS, dense, f"entries of gradients {what}")
        yield from _unequal(experts, OF_EXPERTS, expert, f"entries of gradients of experts {what}")


def _unequal(grid: RankGrid, axes: Sequence[Axis], sizes: Sizes, what: str) -> Iterator[str]:
    members = grid.group_array(*map(str, axes))
    own = sizes[members - grid.rank_offset]
    unlike = np.flatnonzero((own != own[:, :1]).any(1))
    if len(unlike):
        group, counts = members[unlike[0]].tolist(), own[unlike[0]].tolist()
        yield f"ranks {group}, a group over {' and '.join(axes)}, have {counts} {what}"


def _entries(plan: LayoutPlan, module: Module, ranks: ModuleRanks) -> tuple[Sizes, Sizes]:
    execution, experts = plan.executions[module.name], ranks.expert_view()
    places = np.hstack(
        [
            coordinates(ranks, (Axis.PIPELINE, Axis.TENSOR)),
            coordinates(experts, (Axis.EXPERT_TENSOR, Axis.EXPERT)),
        ]
    )
    _, first, of_rank = np.unique(places, axis=0, return_index=True, return_inverse=True)
    counts = []
    for index in first.tolist():
        stage = min(int(places[index, 0]), execution.size(Axis.PIPELINE) - 1)
        cuts = [row.cut for row in stage_tensors(module, execution.sizes, stage)]
        counts.append(_counted(cuts, ranks.shard_place(ranks.rank_offset + index)))
    dense, expert = np.array(counts, np.int64)[of_rank.reshape(-1)].T
    return dense, expert


def _counted(cuts: Sequence[TensorCut], place: ShardPlace) -> tuple[int, int]:
    """Return the entries of tensors on a rank, and of those of experts; a claim has the others."""
    counts = [0, 0]
    for cut in cuts:
        expert = cut.expert is not None
        parts = place.expert_tensor_parallel if expert else place.tensor_parallel
        shard = cut.at(place)
        if shard.is_held and cut.divides(parts):
            counts[expert] += math.prod(shard.shape)
    return counts[0], counts[1]
