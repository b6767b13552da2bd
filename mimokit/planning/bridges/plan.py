"""Bridges between modules: on the same ranks, on separate ranks, to the stages of a pipeline."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mimokit.axes import Axis
from mimokit.planning.bridges.forms import (
    FORMS,
    LEAST_SHARD_BYTES,
    Replica,
    check_replicas,
    direction_between,
    route,
)
from mimokit.planning.bridges.routes import Form, Route
from mimokit.planning.ranks import ModuleRanks, RankGrid, RankRanges
from mimokit.planning.types import Bridge, ColocatedBridge, DisjointBridge
from mimokit.units import bytes_text, counted

End = tuple[str, RankGrid]
"""Name and ranks of a module. The dimensions may be in any order: "dp" counts replicas, "pp"
stages; all others make up the group of a replica."""


def plan_colocated_bridge(
    source: ModuleRanks,
    destination: ModuleRanks,
    samples_per_microbatch: int,
    bytes_per_sample: int,
) -> ColocatedBridge:
    """Return which ranks gather with each other, what each rank keeps, and the bytes that move.

    Both data-parallel sizes divide the samples of a micro-batch, and one of them the other.

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
        gather_groups=tuple(zip(*_gather_groups(many, ratio).T.tolist(), strict=True)),
        pieces=RankRanges(
            spans=(many.ranks,),
            rank_offset=many.rank_offset,
            ranks_per_piece=many.tensor_parallel * many.context_parallel,
            pieces=many.data_parallel,
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


def plan_disjoint_bridge(
    source: End,
    destination: End,
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
        samples_per_microbatch: over all replicas; both data-parallel sizes divide it, and one of
            them divides the other.
        bytes_per_sample: of the output, as it crosses, on average.
        form: the form to use; None: the one that moves least.

    Raises:
        ValueError: the modules share ranks, the sizes do not divide, or the samples of a replica
            cannot be cut for the form.
    """
    ours, theirs = source[1].ranks, destination[1].ranks
    if ours.start < theirs.stop and theirs.start < ours.stop:
        raise ValueError(f"no bridge from '{source[0]}' to '{destination[0]}': they share ranks")
    return _bridge(source, destination, samples_per_microbatch, bytes_per_sample, form)


def plan_first_stage_bridge(
    source: End, destination: End, samples_per_microbatch: int, bytes_per_sample: int
) -> DisjointBridge:
    """Return how the output of a module reaches the first stage of another on the same ranks.

    That is the language model's pipeline, or an adapter next to it. A rank of that stage keeps the
    samples that it has computed: a transfer to itself, which moves nothing. All others are sent, as
    between modules on separate ranks. Megatron-LM's pull request 4784 gathers on all stages
    instead, although only the first needs the samples.
    """
    if source[1].ranks != destination[1].ranks:
        raise ValueError(
            f"no bridge from '{source[0]}' to '{destination[0]}': they are not on the same ranks"
        )
    return _bridge(source, destination, samples_per_microbatch, bytes_per_sample, None)


def _bridge(
    source: End,
    destination: End,
    samples_per_microbatch: int,
    bytes_per_sample: int,
    form: Form | None,
) -> DisjointBridge:
    replicas = _size(source[1], Axis.DATA), _size(destination[1], Axis.DATA)
    check_replicas(source[0], destination[0], replicas, samples_per_microbatch)
    senders = _replicas(source[1], samples_per_microbatch, last_stage=True)
    receivers = _replicas(destination[1], samples_per_microbatch, last_stage=False)
    leaders = route("leader", senders, receivers, bytes_per_sample)
    assert leaders is not None, "leaders need nothing cut"
    return DisjointBridge(
        source=source[0],
        destination=destination[0],
        direction=direction_between(*replicas),
        ratio=max(replicas) // min(replicas),
        leader_edges=tuple((t.source_rank, t.destination_rank) for t in leaders.transfers),
        forward=_route(senders, receivers, bytes_per_sample, form),
        backward=_route(receivers, senders, bytes_per_sample, form),
    )


def without_gradient(bridge: Bridge) -> Bridge:
    """Return the bridge without transfers backward, for a source of which nothing is trained."""
    if isinstance(bridge, ColocatedBridge):
        return replace(bridge, bytes_backward=0)
    reason = f"No gradient crosses: nothing in '{bridge.source}' or before it is trained."
    return replace(bridge, backward=Route(bridge.backward.form, reason=reason))


def _size(grid: RankGrid, dimension: str) -> int:
    return grid.size_of(dimension) if dimension in grid.dimensions else 1


def _replicas(
    grid: RankGrid, samples_per_microbatch: int, *, last_stage: bool
) -> tuple[Replica, ...]:
    # At the last stage the last rank of a group is its leader, at the first stage the first.
    block, axes = grid.block(), [*reversed(grid.dimensions)]
    if Axis.PIPELINE in axes:
        block = np.moveaxis(block, axes.index(Axis.PIPELINE), 0)[-1 if last_stage else 0]
        axes.remove(Axis.PIPELINE)
    if Axis.DATA in axes:
        block = np.moveaxis(block, axes.index(Axis.DATA), 0)
    groups = block.reshape(_size(grid, Axis.DATA), -1)
    width = samples_per_microbatch // len(groups)
    return tuple(
        Replica(tuple(ranks), ranks[-1 if last_stage else 0], (r * width, (r + 1) * width))
        for r, ranks in enumerate(groups.tolist())
    )


def _route(
    senders: Sequence[Replica],
    receivers: Sequence[Replica],
    bytes_per_sample: int,
    form: Form | None,
) -> Route:
    if form is not None:
        chosen = route(form, senders, receivers, bytes_per_sample)
        if chosen is None:
            raise ValueError(
                f"no {form} here: the {counted(len(receivers[0].ranks), 'rank')} of a receiving "
                "replica cannot share its samples evenly"
            )
        return replace(chosen, reason=f"{form.capitalize()}, as requested.")
    # Replicas repeat one pattern, so that comparing its first instance is enough. On shared ranks
    # they do not: each rank keeps a different share.
    times = 1 if _share_ranks(senders, receivers) else min(len(senders), len(receivers))
    pattern = (senders[: len(senders) // times], receivers[: len(receivers) // times])
    tried = [route(name, *pattern, bytes_per_sample) for name in FORMS]
    possible = [candidate for candidate in tried if candidate is not None]
    worth_it = [candidate for candidate in possible if not _tiny(candidate, bytes_per_sample)]
    best = min(worth_it, key=_cost)
    chosen = route(best.form, senders, receivers, bytes_per_sample)
    assert chosen is not None, "the first instance could be cut for this form"
    moved = bytes_text(best.bytes_between * times)
    return replace(chosen, reason=f"Cheapest route: {FORM_WORDS[best.form]}, {moved}.")


FORM_WORDS: Mapping[Form, str] = {
    "leader": "one rank of a replica receives and broadcasts",
    "shards": "each rank of a replica receives a part and they gather",
    "copies": "each rank of a replica receives everything",
}
"""What is said of a form of a route."""


def _share_ranks(senders: Sequence[Replica], receivers: Sequence[Replica]) -> bool:
    sending = {rank for replica in senders for rank in replica.ranks}
    return any(not sending.isdisjoint(replica.ranks) for replica in receivers)


def _tiny(candidate: Route, bytes_per_sample: int) -> bool:
    return candidate.form == "shards" and _piece(candidate, bytes_per_sample) < LEAST_SHARD_BYTES


def _piece(shards: Route, bytes_per_sample: int) -> int:
    """Return the bytes that one rank of a group receives before the group gathers."""
    rank = shards.transfers[0].destination_rank
    received = [t.stop - t.start for t in shards.transfers if t.destination_rank == rank]
    return sum(received) * bytes_per_sample


def _cost(candidate: Route) -> tuple[int, int, int]:
    return candidate.bytes_between, candidate.bytes_busiest, candidate.messages
