"""The words and numbers that every picture of a plan shows."""

from __future__ import annotations

from collections.abc import Iterable

from mimokit.plan.rank_map import RankMap
from mimokit.plan.types import ColocatedBridge, LayoutPlan

MODULE_HUES = ("#0072B2", "#D55E00", "#009E73", "#8C6BB1", "#56B4E9", "#E69F00")
"""One per module, in order; after Okabe and Ito, apart also for colour-blind eyes."""

MODULE_HEADINGS = ("module", "ranks", "TP", "CP", "PP", "DP", "EP", "samples each", "reads data")
BRIDGE_HEADINGS = ("bridge", "direction", "gather groups", "forward", "backward")

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_MEANING = {"fan_in": "fan-in", "fan_out": "fan-out", "equal": "equal, nothing moves"}


def title(plan: LayoutPlan) -> str:
    """Return one line about the whole plan."""
    ranks = "rank" if plan.world_size == 1 else "ranks"
    step = plan.batch.global_batch_size * plan.batch.num_microbatches
    return (
        f"{plan.deployment_mode} on {plan.world_size:,} {ranks} · global batch "
        f"{plan.batch.global_batch_size:,} × {plan.batch.num_microbatches:,} micro-batches = "
        f"{step:,} samples a step"
    )


def module_rows(plan: LayoutPlan) -> list[tuple[str, ...]]:
    """Return one row per module, under `MODULE_HEADINGS`."""
    rows = []
    for name, ranks in plan.modules.items():
        batch = plan.batch.modules[name]
        sizes = (
            ranks.tensor_parallel,
            ranks.context_parallel,
            ranks.pipeline_parallel,
            ranks.data_parallel,
            ranks.expert_parallel,
        )
        loads = span_text(batch.loads)
        rows.append(
            (
                name,
                span_text(ranks.ranks),
                *(f"{size:,}" for size in sizes),
                f"{batch.micro_batch_size:,}",
                loads if loads != span_text(ranks.ranks) else "all",
            )
        )
    return rows


def bridge_rows(plan: LayoutPlan) -> list[tuple[str, ...]]:
    """Return one row per bridge, under `BRIDGE_HEADINGS`."""
    return [
        (
            f"{bridge.source} → {bridge.destination}",
            _direction_text(plan, bridge),
            _groups_text(bridge),
            bytes_text(bridge.bytes_forward),
            bytes_text(bridge.bytes_backward),
        )
        for bridge in plan.bridges
    ]


def place_text(ranks: RankMap, rank: int) -> str:
    """Return the coordinates of a rank in the dimensions that the module is cut in, short."""
    found = ranks.coordinates(rank)
    sizes = dict(zip(ranks.grid.dimensions, ranks.grid.shape, strict=True))
    return " ".join(f"{name}{found[name]}" for name in found if sizes[name] > 1) or "whole"


def samples_text(span: tuple[int, int]) -> str:
    """Return a sample range as its first and last sample."""
    start, stop = span
    return f"{start}" if stop == start + 1 else f"{start}–{stop - 1}"


def span_text(ranks: Iterable[int]) -> str:
    """Return ascending ranks as spans: 0–3, 8–11."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(f"{a:,}" if a == b else f"{a:,}–{b:,}" for a, b in spans)


def bytes_text(number: int) -> str:
    """Return bytes in the unit that leaves one to four digits (1 kB is 1,000 bytes)."""
    value, unit = float(number), _UNITS[0]
    for unit in _UNITS:
        if value < 1000 or unit == _UNITS[-1]:
            break
        value /= 1000
    return f"{number} B" if unit == "B" else f"{value:,.3g} {unit}"


def _direction_text(plan: LayoutPlan, bridge: ColocatedBridge) -> str:
    if bridge.direction == "equal":
        return _MEANING["equal"]
    source = plan.modules[bridge.source].data_parallel
    destination = plan.modules[bridge.destination].data_parallel
    return f"{_MEANING[bridge.direction]}, {source:,} → {destination:,} replicas"


def _groups_text(bridge: ColocatedBridge) -> str:
    if bridge.direction == "equal":
        return "none"
    shown = [
        "[" + ", ".join(map(str, group[:4])) + (", …]" if len(group) > 4 else "]")
        for group in bridge.gather_groups[:4]
    ]
    return " ".join(shown) + (" …" if len(bridge.gather_groups) > 4 else "")
