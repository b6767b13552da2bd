"""The way of one sample through the modules, forward and backward."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mimokit.config import ExperimentConfig
from mimokit.config.graph import topological_order
from mimokit.planning.types import Bridge, ColocatedBridge, DisjointBridge, LayoutPlan
from mimokit.units import span_text
from mimokit_widgets.view_models.batch_lanes import ranks_text
from mimokit_widgets.view_models.rank_details import named_samples

MOST_KEPT = 64
"""Samples whose way a page without a kernel has."""


def sample_walk(
    plan: LayoutPlan,
    sample: int,
    *,
    backward: bool = False,
    config: ExperimentConfig | None = None,
) -> dict[str, Any]:
    """Return where a sample is at every step of its way.

    Args:
        sample: counted within the micro-batch.
        backward: follow the gradient back instead.
        config: the plan's config, which knows what is frozen on shared ranks.

    Raises:
        ValueError: the sample does not exist.
    """
    return _walk(plan, Loading(plan), sample, backward, config)


class Loading:
    """Which ranks read which samples, for many questions."""

    def __init__(self, plan: LayoutPlan) -> None:
        self._loaded = {
            name: np.array([(rank, *span) for rank, span in module.loaded.items()]).reshape(-1, 3)
            for name, module in plan.batch.modules.items()
        }

    def readers(self, name: str, sample: int) -> str:
        """Return the ranks of the module that read the sample, in words."""
        rank, start, stop = self._loaded[name].T
        reading = rank[(start <= sample) & (sample < stop)].tolist()
        return f"rank{'s' if len(reading) > 1 else ''} {span_text(reading)}" if reading else ""


def _walk(
    plan: LayoutPlan,
    loading: Loading,
    sample: int,
    backward: bool,
    config: ExperimentConfig | None,
) -> dict[str, Any]:
    if not 0 <= sample < plan.batch.samples_per_microbatch:
        raise ValueError(
            f"sample {sample} is not one of 0 to {plan.batch.samples_per_microbatch - 1}"
        )
    order = topological_order(plan.topology)
    replicas = {name: sample // plan.batch.modules[name].micro_batch_size for name in order}
    if backward:
        steps = list(_backward(plan, sample, replicas, config))
    else:
        steps = list(_forward(plan, loading, sample, replicas))
    return {"sample": sample, "backward": backward, "replicas": replicas, "steps": steps}


def walks_of_samples(
    plan: LayoutPlan, config: ExperimentConfig | None = None
) -> Iterator[tuple[int | None, bool, dict[str, Any]]]:
    """Yield the way of the first samples, both directions: what a page is asked for."""
    loading = Loading(plan)
    for backward in (False, True):
        yield None, backward, {}
        for sample in range(min(plan.batch.samples_per_microbatch, MOST_KEPT)):
            yield sample, backward, _walk(plan, loading, sample, backward, config)


def _forward(
    plan: LayoutPlan, loading: Loading, sample: int, replicas: dict[str, int]
) -> Iterator[str]:
    said = ""
    for name, replica in replicas.items():
        readers = loading.readers(name, sample)
        if readers and readers not in said:
            yield f"{readers} {'reads' if readers.startswith('rank ') else 'read'} it"
            said += readers
        yield f"{name} computes it on replica {replica:,} ({ranks_text(plan, name, replica)})"
        for bridge in plan.bridges:
            if bridge.source == name:
                yield _crossing(plan, bridge, sample, backward=False)


def _backward(
    plan: LayoutPlan, sample: int, replicas: dict[str, int], config: ExperimentConfig | None
) -> Iterator[str]:
    for name in reversed(tuple(replicas)):
        if _without_gradient(plan, name, config):
            continue
        yield (
            f"{name} computes its gradient on replica {replicas[name]:,} "
            f"({ranks_text(plan, name, replicas[name])})"
        )
        for bridge in plan.bridges:
            if bridge.destination != name:
                continue
            if _without_gradient(plan, bridge.source, config):
                yield f"no gradient crosses: nothing in {bridge.source} or before it is trained"
            else:
                yield _crossing(plan, bridge, sample, backward=True)


def _without_gradient(plan: LayoutPlan, name: str, config: ExperimentConfig | None) -> bool:
    if config is not None:
        return not config.model.has_backward(name)
    outgoing = [bridge for bridge in plan.disjoint_bridges if bridge.source == name]
    return bool(outgoing) and not any(bridge.backward.transfers for bridge in outgoing)


def _crossing(plan: LayoutPlan, bridge: Bridge, sample: int, *, backward: bool) -> str:
    if isinstance(bridge, ColocatedBridge):
        return _slice_or_gather(plan, bridge, sample, backward)
    return _messages(bridge, sample, backward)


def _slice_or_gather(plan: LayoutPlan, bridge: ColocatedBridge, sample: int, backward: bool) -> str:
    what = "its gradient" if backward else "the output"
    taker = bridge.source if backward else bridge.destination
    giver = bridge.destination if backward else bridge.source
    if bridge.direction == "equal":
        return f"{what} stays where it is: both modules hold the same samples"
    many, few = giver, taker
    gathers = (bridge.direction == "fan_in") != backward
    if not gathers:
        many, few = taker, giver
    piece = plan.batch.modules[many].micro_batch_size
    owner = sample // piece
    if gathers:
        place = owner % bridge.ratio
        return (
            f"{what} is gathered: piece {place + 1} of {bridge.ratio} that replica "
            f"{sample // plan.batch.modules[few].micro_batch_size:,} of {few} puts together"
        )
    kept = named_samples((owner * piece, (owner + 1) * piece))
    keep, they = ("keeps", "it holds") if _single(plan, many) else ("keep", "they hold")
    return (
        f"{what} is cut: {ranks_text(plan, many, owner)} {keep} {kept} of what {they} already, "
        "nothing moves"
    )


def _single(plan: LayoutPlan, module: str) -> bool:
    ranks = plan.modules[module]
    return ranks.tensor_parallel * ranks.context_parallel * ranks.pipeline_parallel == 1


def _messages(bridge: DisjointBridge, sample: int, backward: bool) -> str:
    route = bridge.backward if backward else bridge.forward
    what = "its gradient" if backward else "the output"
    crossing = [t for t in route.transfers if t.start <= sample < t.stop]
    moved = [t for t in crossing if t.moves]
    if not moved:
        return f"{what} stays on rank {crossing[0].source_rank:,}, which goes on with it"
    pairs = ", ".join(f"{t.source_rank:,} → {t.destination_rank:,}" for t in moved[:4])
    more = f" and {len(moved) - 4:,} more" if len(moved) > 4 else ""
    then = {
        "leader": ", which sends it to its group",
        "shards": ", whose group gathers",
        "copies": "",
    }
    after = then[route.form] if route.groups else ""
    return f"{what} crosses in a message, rank {pairs}{more}{after}"
