"""The micro-batch and who computes which part of it: what the batch split draws."""

from typing import Any

from mimokit.charts._palette import module_colors
from mimokit.config.graph import topological_order
from mimokit.planning.types import LayoutPlan
from mimokit.units import counted, span_text

MOST_NAMED = 64
"""Replicas of a module whose ranks are named; more of them are drawn without."""

DIRECTIONS = {
    "fan_in": "fan-in: pieces are gathered forward, the gradient is cut backward",
    "fan_out": "fan-out: the output is cut forward, gradients are gathered backward",
    "equal": "as many replicas on both sides",
}


def batch_lanes(plan: LayoutPlan) -> dict[str, Any]:
    """Return a lane per module, in the order in which samples pass them, and the bridges."""
    batch = plan.batch
    colors = module_colors(plan.modules)
    order = topological_order(plan.topology)
    bridges = [
        {
            "source": bridge.source,
            "destination": bridge.destination,
            "direction": DIRECTIONS[bridge.direction],
        }
        for bridge in plan.bridges
    ]
    lanes = [_lane(plan, name, colors[name]) for name in order]
    return {
        "samples": batch.samples_per_microbatch,
        "microbatches": batch.num_microbatches,
        "lanes": lanes,
        "bridges": bridges,
        "words": _in_words(plan, lanes, bridges),
    }


def replica_ranks(plan: LayoutPlan, module: str, replica: int) -> tuple[range, ...]:
    """Return the ranks of a replica, one span per pipeline stage."""
    ranks = plan.modules[module]
    width = ranks.tensor_parallel * ranks.context_parallel
    return tuple(
        range(stage.start + replica * width, stage.start + (replica + 1) * width)
        for stage in map(ranks.stage, range(ranks.pipeline_parallel))
    )


def ranks_text(plan: LayoutPlan, module: str, replica: int) -> str:
    """Return the ranks of a replica in words: ranks 0–3, 8–11."""
    spans = replica_ranks(plan, module, replica)
    text = span_text(rank for span in spans for rank in span)
    return f"rank{'s' if sum(map(len, spans)) > 1 else ''} {text}"


def _lane(plan: LayoutPlan, name: str, color: str) -> dict[str, Any]:
    replicas = plan.modules[name].data_parallel
    return {
        "module": name,
        "color": color,
        "replicas": replicas,
        "each": plan.batch.modules[name].micro_batch_size,
        "ranks": [ranks_text(plan, name, r) for r in range(min(replicas, MOST_NAMED))],
    }


def _in_words(plan: LayoutPlan, lanes: list[dict[str, Any]], bridges: list[dict[str, Any]]) -> str:
    parts = [
        f"Batch split: {counted(plan.batch.samples_per_microbatch, 'sample')} per micro-batch, "
        f"{counted(plan.batch.num_microbatches, 'micro-batch')} per step."
    ]
    for lane in lanes:
        replicas, samples = (
            counted(lane[key], noun) for key, noun in (("replicas", "replica"), ("each", "sample"))
        )
        parts.append(f"{lane['module']}: {replicas} of {samples}.")
    parts += [f"{b['source']} → {b['destination']}: {b['direction']}." for b in bridges]
    return " ".join(parts)
