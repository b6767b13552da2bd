"""All that is known of one rank."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from mimokit.axes import GRID_AXES, SIZE_FIELDS, Axis
from mimokit.charts._palette import module_colors
from mimokit.config import ExperimentConfig, ModuleArchitecture
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.report.rows import place_text
from mimokit.planning.types import ColocatedBridge, DisjointBridge, LayoutPlan
from mimokit.units import counted, samples_text, span_text

MOST_PEERS = 6
MOST_NAMED = 8
MOST_KEPT = 128
"""Ranks that a page without a kernel has the details of."""


def rank_details(
    plan: LayoutPlan, rank: int, ranks_per_node: int, config: ExperimentConfig | None = None
) -> dict[str, Any]:
    """Return what a rank holds, computes, reads, and whom it talks to.

    Args:
        config: the plan's config, for the layers that the rank holds.
    """
    colors = module_colors(plan.modules)
    modules = [
        {"color": colors[name], **_module(plan, ranks, rank, config)}
        for name, ranks in plan.modules.items()
        if rank in ranks.ranks
    ]
    node, peers = rank // ranks_per_node, list(_peers(plan, rank))
    return {"rank": rank, "node": node, "modules": modules, "peers": peers}


def details_of_ranks(
    plan: LayoutPlan, ranks_per_node: int, config: ExperimentConfig | None = None
) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """Yield the details of the first ranks, and those of none: what a page is asked for."""
    yield None, {}
    for rank in range(min(plan.world_size, MOST_KEPT)):
        yield rank, rank_details(plan, rank, ranks_per_node, config)


def named_samples(span: tuple[int, int]) -> str:
    """Return "sample 5" or "samples 0–7"."""
    return f"sample{'s' if span[1] - span[0] > 1 else ''} {samples_text(span)}"


def _module(
    plan: LayoutPlan, ranks: ModuleRanks, rank: int, config: ExperimentConfig | None
) -> dict[str, Any]:
    batch = plan.batch.modules[ranks.module]
    work = f"computes {named_samples(batch.samples[rank])}"
    if rank in batch.loaded:
        work += f", reads {named_samples(batch.loaded[rank])}"
    shard = ""
    if config is not None and ranks.module in config.model.module_architectures:
        shard = _shard(ranks, rank, config.model.module_architectures[ranks.module])
    return {
        "name": ranks.module,
        "place": place_text(ranks, rank),
        "work": f"{work}.",
        "shard": shard,
        "groups": list(_groups(ranks, rank)),
    }


def _groups(ranks: ModuleRanks, rank: int) -> Iterator[dict[str, Any]]:
    for axis in GRID_AXES:
        if ranks.size_of(axis) > 1:
            yield _group(axis, ranks.group_of(rank, axis))
    if ranks.expert_parallel > 1:
        yield _group(Axis.EXPERT, ranks.expert_view().group_of(rank, Axis.EXPERT))


def _group(axis: Axis, members: tuple[int, ...]) -> dict[str, Any]:
    return {
        "dimension": str(axis),
        "label": f"{axis.label} ({SIZE_FIELDS[axis]})",
        "members": _progressions(members),
        "text": _members_text(members),
    }


def _progressions(members: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Return ascending ranks as (first, step, count): one for all where the step is the same."""
    steps = set(np.diff(members).tolist())
    if len(steps) <= 1:
        return [(members[0], max(steps, default=1), len(members))]
    return [(member, 1, 1) for member in members]


def _members_text(members: tuple[int, ...]) -> str:
    progressions = _progressions(members)
    step = progressions[0][1] if len(progressions) == 1 else None
    if step == 1 or len(members) <= MOST_NAMED:
        return f"ranks {span_text(members)}"
    every = ", …" if step is None else f", every {step:,}"
    first = ", ".join(f"{member:,}" for member in members[:4])
    return f"{counted(len(members), 'rank')} {first} … {members[-1]:,}{every}"


def _shard(ranks: ModuleRanks, rank: int, network: ModuleArchitecture) -> str:
    place = ranks.coordinates(rank)
    per_stage = network.num_layers // ranks.pipeline_parallel
    first = place["pp"] * per_stage
    layers = f"layers {first}–{first + per_stage - 1} of {network.num_layers}"
    if per_stage == network.num_layers:
        layers = f"all {counted(network.num_layers, 'layer')}"
    if ranks.tensor_parallel == 1:
        return f"Holds {layers}, each whole"
    heads = network.num_attention_heads // ranks.tensor_parallel
    begin = place["tp"] * heads
    span = f"{begin}–{begin + heads - 1}" if heads > 1 else f"{begin}"
    return (
        f"Holds part {place['tp'] + 1} of {ranks.tensor_parallel} of {layers}: heads {span} of "
        f"{network.num_attention_heads}"
    )


def _peers(plan: LayoutPlan, rank: int) -> Iterator[str]:
    for bridge in plan.bridges:
        if isinstance(bridge, ColocatedBridge):
            yield from _gathers(bridge, rank)
        else:
            yield from _sends(bridge, rank)
    yield from _stages(plan, rank)


def _gathers(bridge: ColocatedBridge, rank: int) -> Iterator[str]:
    name = f"{bridge.source} → {bridge.destination}"
    if bridge.direction == "equal":
        return
    group = next((group for group in bridge.gather_groups if rank in group), ())
    (start, stop), first = bridge.pieces[rank], bridge.pieces[group[0]][0]
    kept, samples = named_samples((start - first, stop - first)), (stop - start) * len(group)
    gather, cut = ("forward", "backward")[:: 1 if bridge.direction == "fan_in" else -1]
    yield (
        f"{name}, {gather}: gathers with {_members_text(tuple(group))}; "
        f"{cut}: keeps {kept} of their {samples}."
    )


def _sends(bridge: DisjointBridge, rank: int) -> Iterator[str]:
    for way, route in (("forward", bridge.forward), ("backward", bridge.backward)):
        name = f"{bridge.source} → {bridge.destination}, {way}"
        transfers = [t for t in route.transfers if rank in (t.source_rank, t.destination_rank)]
        for transfer in transfers[:MOST_PEERS]:
            if not transfer.moves:
                yield f"{name}: keeps {named_samples((transfer.start, transfer.stop))}."
                continue
            sends = transfer.source_rank == rank
            other = transfer.destination_rank if sends else transfer.source_rank
            what = named_samples((transfer.start, transfer.stop))
            yield f"{name}: {'sends' if sends else 'receives'} {what} " + (
                f"to rank {other:,}." if sends else f"from rank {other:,}."
            )
        if len(transfers) > MOST_PEERS:
            yield f"{name}: and {counted(len(transfers) - MOST_PEERS, 'message')} more."
        for group in islice((group for group in route.groups if rank in group), 1):
            does = "receives from" if route.form == "leader" else "gathers with"
            yield f"{name}: {does} {_members_text(tuple(group))}."


def _stages(plan: LayoutPlan, rank: int) -> Iterator[str]:
    for name, ranks in plan.modules.items():
        if rank not in ranks.ranks or ranks.pipeline_parallel == 1:
            continue
        stages = ranks.group_of(rank, "pp")
        place = stages.index(rank)
        if place:
            yield f"{name}, stage {place}: activations come from rank {stages[place - 1]:,}."
        if place + 1 < len(stages):
            yield f"{name}, stage {place}: activations go to rank {stages[place + 1]:,}."
