"""A plan as plain lists and dicts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from mimokit.plan.rank_map import DIMENSIONS, RankMap
from mimokit.plan.types import ColocatedBridge, LayoutPlan, ModuleBatch, SampleRange


def plan_to_json(plan: LayoutPlan) -> dict[str, Any]:
    """Return what `mimokit plan --json` prints; ranks as keys are text."""
    return {
        "world_size": plan.world_size,
        "deployment_mode": plan.deployment_mode,
        "topology": {name: list(fed) for name, fed in plan.topology.items()},
        "modules": {name: _module(ranks) for name, ranks in plan.modules.items()},
        "batch": {
            "global_batch_size": plan.batch.global_batch_size,
            "modules": {name: _batch(batch) for name, batch in plan.batch.modules.items()},
        },
        "bridges": [_bridge(bridge) for bridge in plan.bridges],
    }


def _module(ranks: RankMap) -> dict[str, Any]:
    grid = ranks.grid
    return {
        "coords": {str(rank): dict(grid.coordinates(rank)) for rank in grid.ranks},
        "groups": {
            "-".join(dimensions): grid.group_array(*dimensions).tolist()
            for count in range(1, len(DIMENSIONS) + 1)
            for dimensions in combinations(DIMENSIONS, count)
        },
    }


def _batch(batch: ModuleBatch) -> dict[str, Any]:
    return {
        "micro_batch_size": batch.micro_batch_size,
        "samples": _ranges(batch.samples),
        "loads": list(batch.loads),
    }


def _bridge(bridge: ColocatedBridge) -> dict[str, Any]:
    return {
        "source": bridge.source,
        "destination": bridge.destination,
        "direction": bridge.direction,
        "gather_groups": [list(group) for group in bridge.gather_groups],
        "slices": _ranges(bridge.slices),
        "bytes_forward": bridge.bytes_forward,
        "bytes_backward": bridge.bytes_backward,
    }


def _ranges(ranges: Mapping[int, SampleRange]) -> dict[str, list[int]]:
    return {str(rank): list(ranges[rank]) for rank in ranges}
