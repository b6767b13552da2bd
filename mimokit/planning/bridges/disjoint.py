"""Bridges between modules on separate ranks, and to the first stage of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mimokit.axes import Axis
from mimokit.planning.bridges.routes import (
    FORMS,
    LEAST_SHARD_BYTES,
    Form,
    Replica,
    Route,
    check_replicas,
    direction_between,
    route,
)
from mimokit.planning.ranks import RankGrid
from mimokit.planning.types import DisjointBridge
from mimokit.units import bytes_text, counted


def plan_disjoint_bridge(
    source: tuple[str, RankGrid],
    destination: tuple[str, RankGrid],
    samples_per_microbatch: int,
    bytes_per_sample: int,
    form: Form | None = None,
) -> DisjointBridge:
    """Return the transfers of samples between ranks, and the bytes that move, per micro-batch.

    The form is chosen that moves the fewest bytes between the modules, whose links are the slow
    ones; then the one with the fewest bytes through its busiest rank; then the one with the fewest
    messages. Shards below `LEAST_SHARD_BYTES` are left out: their messages take longer than they
    save. The forms of forward and backward are chosen independently.

    Args:
        source: name and ranks of the module whose output crosses. The dimensions may be in any
            order: "dp" counts replicas, "pp" stages; all others make up the group of a replica.
        destination: the same for the module that receives it, on other ranks.
        samples_per_microbatch: samples of one micro-batch over all replicas; both
            data-parallel sizes divide it, and one of them divides the other.
        bytes_per_sample: of the output, as it crosses, on average.
        form: the form to use; None: the one that moves least.

    Raises:
        ValueError: the modules share ranks, the sizes do not divide, or the samples of a replica
            cannot be cut for the form.
    """
    _check(source, destination, samples_per_microbatch)
    return _bridge(source, destination, samples_per_microbatch, bytes_per_sample, form)


def plan_first_stage_bridge(
    source: tuple[str, RankGrid],
    destination: tuple[str, RankGrid],
    samples_per_microbatch: int,
    bytes_per_sample: int,
) -> DisjointBridge:
    """Return how the output of a module reaches the first stage of a pipeline on the same ranks.

    A rank of that stage keeps the samples that it has computed: a transfer to itself, which moves
    nothing. All others are sent, as between modules on separate ranks. Megatron-LM's pull request
    4784 gathers on all stages instead, although only the first needs the samples.

    Args:
        source: name and ranks of the module whose output crosses.
        destination: the same for the module that receives it; its ranks are the source's.
        samples_per_microbatch: as in `plan_disjoint_bridge`.
        bytes_per_sample: of the output, as it crosses, on average.

    Raises:
        ValueError: the modules are on different ranks, or the sizes do not divide.
    """
    if source[1].ranks != destination[1].ranks:
        raise ValueError(
            f"no bridge from '{source[0]}' to '{destination[0]}': they are not on the same ranks"
        )
    _check_sizes(source, destination, samples_per_microbatch)
    return _bridge(source, destination, samples_per_microbatch, bytes_per_sample, None)


def _bridge(
    source: tuple[str, RankGrid],
    destination: tuple[str, RankGrid],
    samples_per_microbatch: int,
    bytes_per_sample: int,
    form: Form | None,
) -> DisjointBridge:
    senders = _replicas(source[1], samples_per_microbatch, last_stage=True)
    receivers = _replicas(destination[1], samples_per_microbatch, last_stage=False)
    leaders = route("leader", senders, receivers, bytes_per_sample)
    assert leaders is not None, "leaders need nothing cut"
    many, few = max(len(senders), len(receivers)), min(len(senders), len(receivers))
    return DisjointBridge(
        source=source[0],
        destination=destination[0],
        direction=direction_between(len(senders), len(receivers)),
        ratio=many // few,
        leader_edges=tuple((t.source_rank, t.destination_rank) for t in leaders.transfers),
        forward=_route(senders, receivers, bytes_per_sample, form),
        backward=_route(receivers, senders, bytes_per_sample, form),
    )


def without_gradient(bridge: DisjointBridge) -> DisjointBridge:
    """Return the bridge without transfers backward, for a source of which nothing is trained."""
    nothing = Route(
        form=bridge.backward.form,
        transfers=(),
        groups=(),
        bytes_between=0,
        bytes_busiest=0,
        bytes_within=0,
        messages=0,
        reason=f"No gradient crosses: nothing in '{bridge.source}' or before it is trained.",
    )
    return replace(bridge, backward=nothing)


def _check(
    source: tuple[str, RankGrid], destination: tuple[str, RankGrid], samples_per_microbatch: int
) -> None:
    names = f"from '{source[0]}' to '{destination[0]}'"
    ours, theirs = source[1].ranks, destination[1].ranks
    if ours.start < theirs.stop and theirs.start < ours.stop:
        raise ValueError(f"no bridge {names}: they share ranks")
    _check_sizes(source, destination, samples_per_microbatch)


def _check_sizes(
    source: tuple[str, RankGrid], destination: tuple[str, RankGrid], samples_per_microbatch: int
) -> None:
    replicas = _size(source[1], "dp"), _size(destination[1], "dp")
    check_replicas(source[0], destination[0], replicas, samples_per_microbatch)


def _size(grid: RankGrid, dimension: str) -> int:
    return grid.size_of(dimension) if dimension in grid.dimensions else 1


def _replicas(
    grid: RankGrid, samples_per_microbatch: int, *, last_stage: bool
) -> tuple[Replica, ...]:
    """Return the replicas at a module's first or last stage, in the order of their samples.

    At the last stage the last rank of a group is its leader, at the first stage the first.
    """
    within = [name for name in grid.dimensions if name not in (Axis.DATA, Axis.PIPELINE)]
    single = np.array(grid.ranks, dtype=np.int64)[:, None]
    groups = grid.group_array(*within) if within else single
    firsts = groups[:, 0] - grid.rank_offset
    stage = _size(grid, Axis.PIPELINE) - 1 if last_stage else 0
    groups = groups[_coordinate(grid, firsts, Axis.PIPELINE) == stage]
    firsts = groups[:, 0] - grid.rank_offset
    groups = groups[np.argsort(_coordinate(grid, firsts, Axis.DATA))]
    width = samples_per_microbatch // len(groups)
    return tuple(
        Replica(tuple(ranks), ranks[-1 if last_stage else 0], (r * width, (r + 1) * width))
        for r, ranks in enumerate(groups.tolist())
    )


def _coordinate(grid: RankGrid, places: NDArray[np.int64], dimension: str) -> NDArray[np.int64]:
    if dimension not in grid.dimensions:
        return np.zeros_like(places)
    index = grid.dimensions.index(dimension)
    found: NDArray[np.int64] = places // int(np.prod(grid.shape[:index])) % grid.shape[index]
    return found


def _route(
    senders: Sequence[Replica],
    receivers: Sequence[Replica],
    bytes_per_sample: int,
    form: Form | None,
) -> Route:
    """Return the route of a form, or the one that moves least, with the reason."""
    if form is not None:
        chosen = route(form, senders, receivers, bytes_per_sample)
        if chosen is None:
            raise ValueError(
                f"no {form} here: the {len(receivers[0].ranks)} ranks of a receiving replica "
                f"cannot share its samples evenly"
            )
        return replace(chosen, reason=f"{form.capitalize()}, as requested.")
    # Replicas repeat one pattern, so that comparing its first instance is enough. On shared ranks
    # they do not: each rank keeps a different share.
    times = 1 if _share_ranks(senders, receivers) else min(len(senders), len(receivers))
    pattern = (senders[: len(senders) // times], receivers[: len(receivers) // times])
    tried = [route(name, *pattern, bytes_per_sample) for name in FORMS]
    possible = [candidate for candidate in tried if candidate is not None]
    found = [candidate for candidate in possible if not _tiny(candidate, bytes_per_sample)]
    best = min(found, key=_cost)
    chosen = route(best.form, senders, receivers, bytes_per_sample)
    assert chosen is not None, "the first instance could be cut for this form"
    others = [
        f"the {other.form} form {_compared(other, best, times, bytes_per_sample)}"
        for other in possible
        if other is not best
    ]
    reason = f"The {best.form} form moves least: {_moved(best, times)}; {', '.join(others)}."
    return replace(chosen, reason=reason)


def _share_ranks(senders: Sequence[Replica], receivers: Sequence[Replica]) -> bool:
    sending = {rank for replica in senders for rank in replica.ranks}
    return any(not sending.isdisjoint(replica.ranks) for replica in receivers)


def _compared(other: Route, best: Route, times: int, bytes_per_sample: int) -> str:
    if _tiny(other, bytes_per_sample):
        return (
            f"would cut it into pieces of {bytes_text(_piece(other, bytes_per_sample))}, too small "
            "for separate messages"
        )
    return "the same" if _cost(other) == _cost(best) else _moved(other, times)


def _tiny(candidate: Route, bytes_per_sample: int) -> bool:
    return candidate.form == "shards" and _piece(candidate, bytes_per_sample) < LEAST_SHARD_BYTES


def _piece(shards: Route, bytes_per_sample: int) -> int:
    """Return the bytes that one rank of a group receives before the group gathers."""
    rank = shards.transfers[0].destination_rank
    mine = [t.stop - t.start for t in shards.transfers if t.destination_rank == rank]
    return sum(mine) * bytes_per_sample


def _cost(candidate: Route) -> tuple[int, int, int]:
    return candidate.bytes_between, candidate.bytes_busiest, candidate.messages


def _moved(candidate: Route, times: int) -> str:
    count = counted(candidate.messages * times, "message")
    return (
        f"{bytes_text(candidate.bytes_between * times)} in {count}, "
        f"{bytes_text(candidate.bytes_busiest)} through the busiest rank"
    )
