"""Bridges on shared ranks, ours and Megatron's: `python -m benchmarks.colocated_transfers`.

Both carry the same rows forward and the same gradients backward on 4 ranks, in turn within one run:
ours in a step that checks that the replicas of a source agree, and in the others, which do not.
Megatron's has no such check. megatron-core 0.16.1 has no such bridge: there are no rows then. Last
comes the share of a training run's time that its checks take.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import mimokit
from benchmarks.table import show
from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from tests.layouts import digits_config
from tests.megatron_on_gloo import HAS_COLOCATED_BRIDGE

# name: (TP, DP) of the source, of the destination
LAYOUTS = {
    "fan-in TP1 DP4 to TP4 DP1": ((1, 4), (4, 1)),
    "fan-in TP2 DP2 to TP4 DP1": ((2, 2), (4, 1)),
    "fan-out TP4 DP1 to TP1 DP4": ((4, 1), (1, 4)),
    "fan-out TP2 DP2 to TP1 DP4": ((2, 2), (1, 4)),
    "equal TP2 DP2": ((2, 2), (2, 2)),
    "equal TP4 DP1": ((4, 1), (4, 1)),
}
SAMPLES, WIDTH, NUMBER = 8, 1024, 4
STEPS = 300
"""Of the training whose checks are timed."""
REPEATS = {1: 40, 64: 9}
"""Megabytes of all samples -> pairs."""


def measure(plan: Any, megabytes: int) -> dict[str, list[tuple[float, float]]]:
    """Time both ways together; return pairs (ours, Megatron's) with and without the check."""
    import torch
    import torch.distributed as dist

    from benchmarks.transfers import seconds_of_slowest
    from mimokit.engine.bridges.colocated import ColocatedBridgeCommunicator
    from mimokit.engine.parallel.grids import create_grids
    from tests.megatron_on_gloo import colocated_bridge

    grids, groups = create_grids(plan)
    checked = ColocatedBridgeCommunicator(plan.bridges[0], groups["images"].tp)
    unchecked = ColocatedBridgeCommunicator(plan.bridges[0], groups["images"].tp)
    unchecked.check_replicas = lambda embeddings: None  # type: ignore[method-assign]
    theirs = colocated_bridge(grids["images"], grids["language_module"])
    source, destination = plan.modules["images"], plan.modules["language_module"]
    few = min(source.data_parallel, destination.data_parallel)
    rows = (megabytes << 20) // SAMPLES // WIDTH // NUMBER
    counts = [rows] * (SAMPLES // few)
    # The same on all tensor-parallel ranks of a replica.
    generator = torch.Generator().manual_seed(source.coordinates(dist.get_rank())["dp"])
    piece = torch.rand(SAMPLES // source.data_parallel * rows, WIDTH, generator=generator)
    gradient = torch.rand(SAMPLES // destination.data_parallel * rows, WIDTH)

    def both_ways(send: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], object]:
        return lambda: send(piece.clone().requires_grad_()).backward(gradient)

    megatrons = both_ways(theirs.communicate)
    times: dict[str, list[tuple[float, float]]] = {}
    for name, bridge in (("with", checked), ("without", unchecked)):
        ours = both_ways(lambda sent, bridge=bridge: bridge(sent, counts))
        pairs = [
            (seconds_of_slowest(ours), seconds_of_slowest(megatrons))
            for _ in range(1 + REPEATS[megabytes])
        ]
        times[name] = pairs[1:]
    return times


def share_of_checks(plan: Any, config: Any) -> tuple[float, int]:
    """Train; return the share of this rank's time that its checks took, and how many steps did."""
    import time

    from mimokit.engine.bridges.checks import check_rarely
    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.optimizer_step import prepared, training_step

    with prepared(RunOfRank(plan, config)) as state:
        bridges = list(state.model.bridges.values())
        state.checks = check_rarely(bridges)
        for _ in range(2):
            exhaust(training_step(state))
        seconds, before = [], sum(bridge.comparisons for bridge in bridges)
        for bridge in bridges:
            bridge.check_replicas = _timed(bridge.check_replicas, seconds)  # type: ignore[method-assign]
        begin = time.perf_counter()
        for _ in range(STEPS):
            exhaust(training_step(state))
        share = sum(seconds) / (time.perf_counter() - begin)
        return share, sum(bridge.comparisons for bridge in bridges) - before


def _timed(check: Callable[..., None], seconds: list[float]) -> Callable[..., None]:
    import time

    def timed(embeddings: Any) -> None:
        begin = time.perf_counter()
        check(embeddings)
        seconds.append(time.perf_counter() - begin)

    return timed


def rows() -> list[dict[str, Any]]:
    """Return the figures of the table."""
    figures = []
    with EngineCluster(n=4, progress=False) as cluster:
        for layout, sizes in LAYOUTS.items():
            plan = mimokit.plan(_config(*sizes))
            for megabytes in REPEATS if HAS_COLOCATED_BRIDGE else ():
                times = cluster.run(measure, plan, megabytes, world_size=4)[0]
                figures += [
                    _row(f"{layout}, {megabytes} MB, {check} the check of replicas", pairs)
                    for check, pairs in times.items()
                ]
        config = _config((2, 2), (4, 1))
        shares = cluster.run(share_of_checks, mimokit.plan(config), config, world_size=4)
        share, checked = max(shares)
        figures.append(
            {
                "name": f"checks in {checked} of {STEPS} steps of training take of their time",
                "measured": 100 * share,
                "target": 1.0,
                "unit": "%",
                "ok": share <= 0.01,
            }
        )
    return figures


def _config(source: tuple[int, int], destination: tuple[int, int]) -> ExperimentConfig:
    sizes = {"images": source, "language_module": destination}
    return digits_config(source, destination).with_layout(
        "colocated",
        **{
            name: {"tensor_parallel": tensor, "data_parallel": data}
            for name, (tensor, data) in sizes.items()
        },
    )


def _row(name: str, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {
        "name": f"{name}: {ours * 1e3:.2f} ms, Megatron's {theirs * 1e3:.2f} ms; times as fast",
        "measured": statistics.median(b / a for a, b in pairs),
        "target": None,
        "unit": "",
        "ok": True,
    }


if __name__ == "__main__":
    show("Transfers on shared ranks", rows())
