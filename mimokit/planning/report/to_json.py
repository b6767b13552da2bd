"""A plan as lists and dicts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

from mimokit.planning.ranks import DIMENSIONS, ModuleRanks, SampleRange
from mimokit.planning.replicas import strategies
from mimokit.planning.report.frames import frames_to_json
from mimokit.planning.schedule import unit_timeline
from mimokit.planning.schedule.simulation import BACKWARD_UNITS, FORWARD_UNITS

if TYPE_CHECKING:
    from mimokit.planning.pipeline import PipelinePlan
    from mimokit.planning.report.planned_layout import Estimates
    from mimokit.planning.types import Bridge, DisjointBridge, LayoutPlan, ModuleBatch, Route


def plan_to_json(plan: LayoutPlan, estimates: Estimates) -> dict[str, Any]:
    """Return what `mimokit plan --json` prints; ranks as keys are text."""
    content = {
        "world_size": plan.world_size,
        "deployment_mode": plan.deployment_mode,
        "topology": {name: list(fed) for name, fed in plan.topology.items()},
        "modules": {name: _module(ranks) for name, ranks in plan.modules.items()},
        "batch": {
            "samples_per_microbatch": plan.batch.samples_per_microbatch,
            "global_batch_size": plan.batch.global_batch_size,
            "modules": {name: _batch(batch) for name, batch in plan.batch.modules.items()},
        },
        "bridges": [_bridge(bridge) for bridge in plan.bridges],
    }
    if estimates.rejected:
        content["rejected_by_run"] = [problem.sentence for problem in estimates.rejected]
    if plan.optimizer_options:
        content["optimizers"] = plan.optimizer_options
    if plan.pipeline is not None:
        content["pipeline"] = _pipeline(plan.pipeline)
    if estimates.frames:
        content["frames"] = {batch.encoder: frames_to_json(batch) for batch in estimates.frames}
    if plan.replicas is not None:
        content["strategy"] = strategies().strategy_to_json(plan.replicas, estimates)
    return content


def _module(ranks: ModuleRanks) -> dict[str, Any]:
    return {
        "coords": {str(rank): dict(ranks.coordinates(rank)) for rank in ranks.ranks},
        "groups": {
            "-".join(dimensions): ranks.group_array(*dimensions).tolist()
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


def _bridge(bridge: Bridge) -> dict[str, Any]:
    if bridge.kind == "disjoint":
        return _disjoint_bridge(bridge)
    return {
        "source": bridge.source,
        "destination": bridge.destination,
        "direction": bridge.direction,
        "gather_groups": [list(group) for group in bridge.gather_groups],
        "slices": {
            str(rank): [start - bridge.wholes[rank][0], stop - bridge.wholes[rank][0]]
            for rank, (start, stop) in bridge.pieces.items()
        },
        "bytes_forward": bridge.bytes_forward,
        "bytes_backward": bridge.bytes_backward,
    }


def _disjoint_bridge(bridge: DisjointBridge) -> dict[str, Any]:
    """Return a bridge between separate ranks; keys without "backward" are forward."""
    forward, backward = bridge.forward, bridge.backward
    return {
        "source": bridge.source,
        "destination": bridge.destination,
        "direction": bridge.direction,
        "leader_edges": [list(edge) for edge in bridge.leader_edges],
        "form": forward.form,
        "reason": forward.reason,
        "transfers": _transfers(forward),
        "gather_groups": [list(group) for group in forward.groups],
        "slices": _received(forward),
        "bytes_forward": forward.bytes_between,
        "bytes_within_forward": forward.bytes_within,
        "form_backward": backward.form,
        "reason_backward": backward.reason,
        "transfers_backward": _transfers(backward),
        "gather_groups_backward": [list(group) for group in backward.groups],
        "bytes_backward": backward.bytes_between,
        "bytes_within_backward": backward.bytes_within,
    }


def _received(route: Route) -> dict[str, list[int]]:
    """Return rank -> the samples that it receives itself, counted within those of its group."""
    spans: dict[int, tuple[int, int]] = {}
    for t in route.transfers:
        start, stop = spans.get(t.destination_rank, (t.start, t.stop))
        spans[t.destination_rank] = min(start, t.start), max(stop, t.stop)
    received = {}
    for group in route.groups or [(rank,) for rank in spans]:
        first = min(spans[rank][0] for rank in group if rank in spans)
        for rank in group:
            start, stop = spans.get(rank, (first, first))
            received[str(rank)] = [start - first, stop - first]
    return received


def _transfers(route: Route) -> list[dict[str, int]]:
    return [
        {
            "source_rank": transfer.source_rank,
            "destination_rank": transfer.destination_rank,
            "start": transfer.start,
            "stop": transfer.stop,
        }
        for transfer in route.transfers
    ]


def _pipeline(pipeline: PipelinePlan) -> dict[str, Any]:
    timeline, schedule = unit_timeline(pipeline.schedule), pipeline.schedule
    stages = {str(rank): pipeline.stages_of(rank)[0] for rank, _ in pipeline.by_rank()}
    warmup = [schedule.warmup(stage.index) for stage in pipeline.graph.stages]
    return {
        "total_stages": pipeline.graph.total_stages,
        "num_microbatches": schedule.num_microbatches,
        "stage": {rank: stage.position for rank, stage in stages.items()},
        "warmup": {rank: warmup[stage.index] for rank, stage in stages.items()},
        "in_flight": {rank: timeline.in_flight[stage.index] for rank, stage in stages.items()},
        "bubble": {rank: timeline.bubble[stage.index] for rank, stage in stages.items()},
        "makespan": timeline.makespan,
        "slots": [
            {
                "module": stage.module,
                "place": stage.place,
                "counts": dict(slots.counts),
                "offsets": slots.offsets,
            }
            for stage, slots in zip(pipeline.graph.stages, pipeline.slots.stages, strict=True)
        ],
        "unit_times": {"forward": FORWARD_UNITS, "backward": BACKWARD_UNITS, "transfer": 0.0},
    }


def _ranges(ranges: Mapping[int, SampleRange]) -> dict[str, list[int]]:
    return {str(rank): list(ranges[rank]) for rank in ranges}
