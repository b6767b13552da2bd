"""Bridges between disjoint ranks against megatron-core's: `python -m benchmarks.transfers`.

Both carry the same tensors between the same ranks, in turn within one run. Megatron's
`BridgeCommunicator` asks for NCCL and for CUDA's current device; here, and only here, it is given
gloo and the CPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from benchmarks.table import show
from mimokit.cluster import EngineCluster
from mimokit.planning.bridges.plan import plan_disjoint_bridge
from mimokit.planning.ranks import RankGrid
from mimokit.planning.types import DisjointBridge
from tests.megatron_on_gloo import groups_of_gloo

DIMENSIONS = ("tp", "cp", "dp", "pp")
# name: (TP, DP) of the source, of the destination
LAYOUTS = {
    "fan-in DP4 to DP1": ((1, 4), (1, 1)),
    "fan-out DP1 to DP4": ((1, 1), (1, 4)),
    "TP2 to TP4": ((2, 1), (4, 1)),
}
SAMPLES, WIDTH, NUMBER = 8, 1024, 4
MEGABYTES = (1, 64)
REPEATS = {1: 30, 64: 7}
LEAST_SPEED = 1.0

Call = Callable[[], object]


def grids(source: tuple[int, int], destination: tuple[int, int]) -> tuple[RankGrid, RankGrid]:
    """Return the ranks of both modules, next to each other."""
    first = RankGrid(DIMENSIONS, (source[0], 1, source[1], 1))
    shape = (destination[0], 1, destination[1], 1)
    return first, RankGrid(DIMENSIONS, shape, first.size)


def bridge_of(source: RankGrid, destination: RankGrid, megabytes: int) -> DisjointBridge:
    """Plan the bridge of a tensor of so many megabytes."""
    return plan_disjoint_bridge(
        ("source", source), ("destination", destination), SAMPLES, (megabytes << 20) // SAMPLES
    )


def samples_of(grid: RankGrid) -> dict[int, tuple[int, int]]:
    """Return the samples that every rank of a module holds."""
    held = SAMPLES // grid.size_of("dp")
    places = {rank: grid.coordinates(rank)["dp"] for rank in grid.ranks}
    return {rank: (place * held, (place + 1) * held) for rank, place in places.items()}


def measure(layout: str, megabytes: int) -> tuple[dict[str, list[tuple[float, float]]], int]:
    """Time both, forward and backward; return pairs (ours, Megatron's) and the bytes we sent."""
    import torch.distributed as dist

    source, destination = grids(*LAYOUTS[layout])
    plan = bridge_of(source, destination, megabytes)
    rank = dist.get_rank()
    first = rank in source.ranks
    own = source if first else destination
    replicas = own.size_of("dp")
    held = SAMPLES // replicas
    rows = torch.rand(held, (megabytes << 20) // SAMPLES // WIDTH // NUMBER, WIDTH)
    ours, mailbox = _ours(plan, {**samples_of(source), **samples_of(destination)}, rows)
    theirs = _megatron(source, destination, rows)
    sent = [0]
    mailbox.listeners.append(
        lambda message: sent.__setitem__(0, sent[0] + message.sent * message.tensors[1].nbytes)
    )
    times: dict[str, list[tuple[float, float]]] = {"forward": [], "backward": []}
    for _ in range(1 + REPEATS[megabytes]):
        sent[0] = 0
        for way in times:
            side = 0 if first == (way == "forward") else 1
            pair = seconds_of_slowest(ours[way][side]), seconds_of_slowest(theirs[way][side])
            mailbox.wait()
            times[way].append(pair)
    return {way: pairs[1:] for way, pairs in times.items()}, sent[0]


def seconds_of_slowest(call: Call) -> float:
    """Return how long it takes until the slowest rank is done."""
    import torch.distributed as dist

    dist.barrier()
    begin = time.perf_counter()
    call()
    taken = torch.tensor(time.perf_counter() - begin)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    return float(taken)


def _ours(
    plan: DisjointBridge, samples: dict[int, tuple[int, int]], rows: torch.Tensor
) -> tuple[dict[str, tuple[Call, Call]], Any]:
    from mimokit.engine.bridges.messages import Mailbox
    from mimokit.engine.bridges.routes import RouteCommunicator
    from mimokit.engine.ragged import Ragged

    mailbox = Mailbox(torch.device("cpu"))
    flat, counts = rows.flatten(0, 1), [rows.shape[1]] * len(rows)
    calls: dict[str, tuple[Call, Call]] = {}
    for direction, (way, route) in enumerate(
        (("forward", plan.forward), ("backward", plan.backward))
    ):
        ends = RouteCommunicator(route, 0, direction, samples, samples, mailbox)  # type: ignore[arg-type]

        def send(ends: RouteCommunicator = ends) -> None:
            ends.send(Ragged(flat, counts), 0)
            mailbox.wait()

        calls[way] = (send, lambda ends=ends: ends.receive(0))
    return calls, mailbox


def _megatron(
    source: RankGrid, destination: RankGrid, rows: torch.Tensor
) -> dict[str, tuple[Call, Call]]:
    from megatron.core.pipeline_parallel.bridge_communicator import BridgeCommunicator

    from mimokit.engine.megatron import HyperCommGrid

    made = [
        HyperCommGrid(list(g.shape), list(DIMENSIONS), rank_offset=g.rank_offset)
        for g in (source, destination)
    ]
    with groups_of_gloo():
        bridge = BridgeCommunicator(*made, comm_dtype=torch.float32)
    device = torch.device("cpu")

    def on_cpu(call: Callable[..., object], *given: torch.Tensor) -> Call:
        def run() -> object:
            with mock.patch.object(torch.cuda, "current_device", return_value=device):
                return call(*given)

        return run

    return {
        "forward": (on_cpu(bridge.send_forward, rows), on_cpu(bridge.recv_forward)),
        "backward": (on_cpu(bridge.send_backward, rows), on_cpu(bridge.recv_backward)),
    }


def rows() -> list[dict[str, Any]]:
    """Return the figures of the table."""
    found = []
    with EngineCluster(n=6, progress=False) as cluster:
        for layout, (source, destination) in LAYOUTS.items():
            for megabytes in MEGABYTES:
                ends = grids(source, destination)
                size = sum(grid.size for grid in ends)
                ranks = cluster.run(measure, layout, megabytes, world_size=size)
                plan = bridge_of(*ends, megabytes)
                least = plan.forward.bytes_between + plan.backward.bytes_between
                if sum(sent for _, sent in ranks) != least:
                    raise AssertionError(f"{layout} moved other bytes than planned")
                for way, pairs in ranks[0][0].items():
                    found.append(_row(f"{layout}, {megabytes} MB, {way}", pairs))
    return found


def _row(name: str, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    speed = statistics.median(b / a for a, b in pairs)
    return {
        "name": f"{name}: {ours * 1e3:.2f} ms, Megatron's {theirs * 1e3:.2f} ms; times as fast",
        "measured": speed,
        "target": f"at least {LEAST_SPEED:g}",
        "unit": "",
        "ok": speed >= LEAST_SPEED,
    }


if __name__ == "__main__":
    show("Transfers between disjoint ranks", rows())
