"""The claims about samples: each is read, computed and handed on exactly once."""

from collections.abc import Collection, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from mimokit.config.graph import upstream
from mimokit.planning.bridges.routes import Route
from mimokit.planning.ranks import ModuleRanks, RankRanges, SampleRange
from mimokit.planning.types import ColocatedBridge, DisjointBridge, LayoutPlan

Ranges = NDArray[np.int64]
"""[..., 2]: start and stop; -1 and -1 where a rank has no range."""


def uncomputed_samples(plan: LayoutPlan) -> Iterator[str]:
    """Yield samples that a stage of a module does not compute exactly once."""
    total = plan.batch.samples_per_microbatch
    for name, ranks in plan.modules.items():
        batch = plan.batch.modules[name]
        ranges = _by_place(plan, ranks)  # [pp, dp, cp, tp, 2]
        if batch.micro_batch_size * ranks.data_parallel != total:
            yield (
                f"module {name!r} has {ranks.data_parallel} replicas of {batch.micro_batch_size} "
                f"samples, but a micro-batch has {total}"
            )
        if (ranges < 0).any():
            rank = ranks.block()[(ranges < 0).any(-1)][0]
            yield f"rank {rank} computes no samples of module {name!r}"
            continue
        unlike = (ranges != ranges[:1, :, :1, :1]).any(-1)
        if unlike.any():
            yield (
                f"rank {ranks.block()[unlike][0]} of module {name!r} computes other samples than "
                "the ranks with which it shares them"
            )
        fault = covered_once(ranges[0, :, 0, 0], (0, total))
        if fault:
            yield f"module {name!r}: {fault}"


def _by_place(plan: LayoutPlan, ranks: ModuleRanks) -> Ranges:
    return ranges_of(plan.batch.modules[ranks.module].samples, ranks.block())


def unread_samples(plan: LayoutPlan, placing: Collection[str] = ()) -> Iterator[str]:
    """Yield ranks that compute inputs or labels which they do not read."""
    for name, ranks in plan.modules.items():
        batch = plan.batch.modules[name]
        loads = np.array(batch.loads, np.int64)
        outside = loads[(loads < ranks.ranks.start) | (loads >= ranks.ranks.stop)]
        if len(outside):
            yield f"rank {outside[0]} reads for module {name!r} without being in it"
            continue
        read, own = ranges_of(batch.loaded, loads), ranges_of(batch.samples, loads)
        short = (read[:, 0] > own[:, 0]) | (read[:, 1] < own[:, 1]) | (read < 0).any(1)
        if short.any():
            rank = loads[short][0]
            yield (
                f"rank {rank} reads samples {_text(read[short][0])} for module {name!r}, but "
                f"computes {_text(own[short][0])}"
            )
        must = _reading(plan, ranks, placing)
        missing = np.setdiff1d(must, loads)
        if len(missing):
            yield f"rank {missing[0]} computes samples of module {name!r} that it does not read"


def _reading(plan: LayoutPlan, ranks: ModuleRanks, placing: Collection[str]) -> np.ndarray:
    name = ranks.module
    fed = any(name in targets for targets in plan.topology.values())
    ends = [range(0)]  # no rank of an adapter is added below
    if name == plan.llm_module_name or not fed or name in placing:
        ends.append(ranks.stage(0))
    if name == plan.llm_module_name or not plan.topology[name]:
        ends.append(ranks.stage(-1))
    return np.unique(np.concatenate([np.array(end, np.int64) for end in ends]))


def broken_bridges(plan: LayoutPlan) -> Iterator[str]:
    """Yield bridges that do not bring every sample to each rank that expects it, exactly once."""
    crossed = {(bridge.source, bridge.destination) for bridge in plan.bridges}
    for source, targets in plan.topology.items():
        for target in targets:
            if (source, target) not in crossed:
                yield f"no bridge leads from {source!r} to {target!r}"
    for bridge in plan.bridges:
        what = f"the bridge from {bridge.source!r} to {bridge.destination!r}"
        faults = _colocated(plan, bridge) if isinstance(bridge, ColocatedBridge) else _disjoint(
            plan, bridge
        )  # fmt: skip
        yield from (f"{what}: {fault}" for fault in faults)


def _colocated(plan: LayoutPlan, bridge: ColocatedBridge) -> Iterator[str]:
    source, destination = plan.modules[bridge.source], plan.modules[bridge.destination]
    replicas = source.data_parallel, destination.data_parallel
    direction = "equal" if replicas[0] == replicas[1] else (
        "fan_in" if replicas[0] > replicas[1] else "fan_out"
    )  # fmt: skip
    if bridge.direction != direction:
        yield f"it is {bridge.direction}, but leads from {replicas[0]} to {replicas[1]} replicas"
        return
    many, few = (destination, source) if direction == "fan_out" else (source, destination)
    lengths = {len(group) for group in bridge.gather_groups}
    if lengths != {max(replicas) // min(replicas)}:
        yield f"its groups have {sorted(lengths)} ranks, not {max(replicas) // min(replicas)}"
        return
    groups = np.array(bridge.gather_groups, np.int64)
    if not np.array_equal(
        np.sort(groups.reshape(-1)), np.arange(many.ranks.start, many.ranks.stop)
    ):
        yield "not every rank is in exactly one of its groups"
        return
    pieces = ranges_of(plan.batch.modules[many.module].samples, groups)
    whole = ranges_of(plan.batch.modules[few.module].samples, groups)
    if (whole != whole[:, :1]).any():
        yield "the ranks of a group are of different replicas of the module with fewer"
        return
    in_order = (pieces[:, 1:, 0] == pieces[:, :-1, 1]).all()
    ends = (pieces[:, 0, 0] == whole[:, 0, 0]).all() and (pieces[:, -1, 1] == whole[:, 0, 1]).all()
    if not in_order or not ends:
        wrong = np.flatnonzero(
            (pieces[:, 1:, 0] != pieces[:, :-1, 1]).any(1)
            | (pieces[:, 0, 0] != whole[:, 0, 0])
            | (pieces[:, -1, 1] != whole[:, 0, 1])
        )
        ranks = groups[wrong[0]].tolist()
        yield f"the pieces of ranks {ranks} do not make up their samples in order"
    wrong_ranks = groups[(ranges_of(bridge.pieces, groups) != pieces).any(-1)]
    if len(wrong_ranks):
        rank = int(wrong_ranks[0])
        yield f"rank {rank} keeps other samples than it computes"


def _disjoint(plan: LayoutPlan, bridge: DisjointBridge) -> Iterator[str]:
    source, destination = plan.modules[bridge.source], plan.modules[bridge.destination]
    yield from _route(plan, bridge.forward, (source, -1), (destination, 0), "forward")
    if bridge.backward.transfers or has_backward(plan, bridge.source):
        yield from _route(plan, bridge.backward, (destination, 0), (source, -1), "backward")


def has_backward(plan: LayoutPlan, module: str) -> bool:
    """Return whether a gradient passes a module: it, or one that feeds it, is trained."""
    names = {module} | upstream(plan.topology, module)
    return any(not plan.executions[name].is_frozen for name in names if name in plan.executions)


def _route(
    plan: LayoutPlan,
    route: Route,
    sender: tuple[ModuleRanks, int],
    receiver: tuple[ModuleRanks, int],
    way: str,
) -> Iterator[str]:
    sent = plan.batch.modules[sender[0].module].samples
    taken = plan.batch.modules[receiver[0].module].samples
    senders, receivers = sender[0].stage(sender[1]), receiver[0].stage(receiver[1])
    transfers = np.array(
        [(t.source_rank, t.destination_rank, t.start, t.stop) for t in route.transfers], np.int64
    ).reshape(-1, 4)
    outside = ~np.isin(transfers[:, 0], np.array(senders)) | ~np.isin(
        transfers[:, 1], np.array(receivers)
    )
    if outside.any():
        ends = transfers[outside][0, :2].tolist()
        yield f"{way}, rank {ends[0]} sends to rank {ends[1]}: not from its last to its first stage"
        return
    own = ranges_of(sent, transfers[:, 0])
    lacking = (transfers[:, 2] < own[:, 0]) | (transfers[:, 3] > own[:, 1])
    if lacking.any():
        rank, _, start, stop = transfers[lacking][0].tolist()
        yield f"{way}, rank {rank} sends samples {start} to {stop - 1}, which it does not have"
    per_replica = receiver[0].tensor_parallel * receiver[0].context_parallel
    groups = [
        tuple(range(first, first + per_replica))
        for first in range(receivers.start, receivers.stop, per_replica)
    ]
    if route.form != "copies" and per_replica > 1 and set(route.groups) != set(groups):
        yield f"{way}, the groups that share what arrives are not the replicas of the receiver"
    replica = (transfers[:, 1] - receivers.start) // per_replica
    order = np.lexsort((transfers[:, 2], transfers[:, 1] if route.form == "copies" else replica))
    transfers = transfers[order]
    keys = transfers[:, 1] if route.form == "copies" else replica[order]
    targets = receivers if route.form == "copies" else range(len(groups))
    for target in targets:
        first, last = np.searchsorted(keys, (target, target + 1))
        rank = target if route.form == "copies" else groups[target][0]
        fault = covered_once(transfers[first:last, 2:], taken.get(rank, (-1, -1)))
        if fault:
            yield f"{way}, to rank {rank}: {fault}"
            return


def _text(samples: np.ndarray) -> str:
    return f"{samples[0]} to {samples[1] - 1}"


def ranges_of(samples: Mapping[int, SampleRange], ranks: NDArray[np.int64]) -> Ranges:
    """Return the range of each rank, [*shape of the ranks, 2]."""
    if isinstance(samples, RankRanges):
        start = (ranks - samples.rank_offset) // samples.ranks_per_piece % samples.pieces
        ranges = np.stack([start * samples.size, (start + 1) * samples.size], -1)
        has_range = np.zeros(ranks.shape, bool)
        for span in samples.spans:
            has_range |= (ranks >= span.start) & (ranks < span.stop)
        return np.where(has_range[..., None], ranges, -1)
    flat = [samples.get(rank, (-1, -1)) for rank in ranks.reshape(-1).tolist()]
    return np.array(flat, np.int64).reshape(*ranks.shape, 2)


def covered_once(ranges: Ranges, whole: SampleRange) -> str:
    """Return what is wrong with ranges [number, 2] that should make up a whole; or nothing."""
    ordered = ranges[np.lexsort((ranges[:, 1], ranges[:, 0]))]
    at = whole[0]
    for start, stop in ordered.tolist():
        if start > at:
            return f"nobody has samples {at} to {start - 1}"
        if start < at:
            return f"sample {start} is there twice"
        if stop <= start:
            return f"a range from {start} to {stop} is empty"
        at = stop
    if at < whole[1]:
        return f"nobody has samples {at} to {whole[1] - 1}"
    return f"sample {whole[1]} is beyond the {whole[1]} of a micro-batch" if at > whole[1] else ""
