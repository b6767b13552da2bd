"""Bridges between modules on the same ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mimokit.planning.bridges.routes import check_replicas, direction_between
from mimokit.planning.ranks import Groups, ModuleRanks, RankRanges
from mimokit.planning.types import ColocatedBridge

BYTES_PER_NUMBER = 4
"""Activations cross in fp32."""


def plan_colocated_bridge(
    source: ModuleRanks,
    destination: ModuleRanks,
    samples_per_microbatch: int,
    bytes_per_sample: int,
) -> ColocatedBridge:
    """Return which ranks gather with each other, what each rank keeps, and the bytes that move.

    Args:
        source: ranks of the module whose output crosses.
        destination: ranks of the module that receives it, the same ranks.
        samples_per_microbatch: samples of one micro-batch over all replicas; both
            data-parallel sizes divide it, and one of them divides the other.
        bytes_per_sample: of the output, as it crosses.

    Raises:
        ValueError: the modules are not on the same ranks, or the sizes do not divide.
    """
    if source.ranks != destination.ranks:
        raise ValueError(
            f"no bridge from '{source.module}' to '{destination.module}': they are not on the same "
            "ranks"
        )
    replicas = source.data_parallel, destination.data_parallel
    check_replicas(source.module, destination.module, replicas, samples_per_microbatch)
    direction = direction_between(*replicas)
    many, few = source, destination
    if direction == "fan_out":
        many, few = destination, source
    ratio = many.data_parallel // few.data_parallel
    piece = samples_per_microbatch // many.data_parallel
    received = many.size * (ratio - 1) * piece * bytes_per_sample
    return ColocatedBridge(
        source=source.module,
        destination=destination.module,
        direction=direction,
        ratio=ratio,
        gather_groups=_as_tuples(_gather_groups(many, ratio)),
        slices=RankRanges(
            spans=(many.ranks,),
            rank_offset=many.rank_offset,
            ranks_per_piece=many.tensor_parallel * many.context_parallel,
            pieces=ratio,
            size=piece,
        ),
        bytes_forward=received if direction == "fan_in" else 0,
        bytes_backward=received if direction == "fan_out" else 0,
    )


def _gather_groups(many: ModuleRanks, ratio: int) -> NDArray[np.int64]:
    """Return the groups as an array [groups, ratio].

    A group is the ranks with the same tp and cp coordinate in `many`, the module with more
    replicas, within one replica of the other, in the order of the replicas of `many`: the order
    in which their pieces make up the batch of the other. Groups are ordered by their first rank.
    """
    shape = (many.pipeline_parallel, many.data_parallel // ratio, ratio, -1)
    ranks = np.arange(many.rank_offset, many.rank_offset + many.size, dtype=np.int64)
    return ranks.reshape(shape).transpose(0, 1, 3, 2).reshape(-1, ratio)


def _as_tuples(groups: NDArray[np.int64]) -> Groups:
    return tuple(map(tuple, groups.tolist()))
