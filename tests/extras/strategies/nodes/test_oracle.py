"""Four engines under every strategy, against one process that does the same arithmetic."""

import math
from typing import Any

import pytest
import torch

from mimokit.cluster import EngineCluster
from mimokit.engine.strategies import OptimSpec
from mimokit.extras.strategies.exchanges import plan_strategy
from tests import seams
from tests.claims.faults import OUTER_WEIGHTS_SHARED
from tests.extras.strategies.nodes.nodes import SEED, Case, Outcome, net, train_all
from tests.extras.strategies.nodes.oracle import Oracle
from tests.planted import planted, replacing

NODES = 4
TOLERANCE = 1e-5
ADAMW = {"optim_spec": OptimSpec(torch.optim.AdamW, lr=0.01)}
SGD = {"optim_spec": OptimSpec(torch.optim.SGD, lr=0.05, momentum=0.9)}

CASES = {
    "simple_reduce": Case("SimpleReduceStrategy", {**ADAMW, "max_norm": 0.5}),
    "fedavg": Case("FedAvgStrategy", {**ADAMW, "H": 3, "max_norm": 0.5}),
    "islands of 2": Case("FedAvgStrategy", {**SGD, "H": 2, "island_size": 2}),
    "islands of 3 and 1": Case("FedAvgStrategy", {**SGD, "H": 2, "island_size": 3}),
    "sparta": Case("SPARTAStrategy", {**ADAMW, "p_sparta": 0.3}),
    "sparta, delayed": Case("SPARTAStrategy", {**SGD, "p_sparta": 0.3, "delay": 2}),
    "sparta, sequential": Case(
        "SPARTAStrategy",
        {**SGD, "p_sparta": 0.3, "sparta_interval": 2, "index_selector": "shuffled_sequential"},
    ),
    "sparta, partitioned": Case(
        "SPARTAStrategy", {**SGD, "p_sparta": 0.3, "index_selector": "partitioned"}
    ),
    "diloco": Case("DiLoCoStrategy", {**ADAMW, "H": 3}),
    "diloco, offset": Case("DiLoCoStrategy", {**SGD, "H": 3, "sync_offset": 1}),
    "diloco, islands": Case("DiLoCoStrategy", {**SGD, "H": 3, "island_size": 2}),
    "diloco, int8": Case("DiLoCoStrategy", {**SGD, "H": 2, "codec": "int8"}),
    "diloco, int4": Case("DiLoCoStrategy", {**SGD, "H": 2, "codec": "int4"}),
    "sparta_diloco": Case("SPARTADiLoCoStrategy", {**ADAMW, "H": 3, "p_sparta": 0.3}),
    "demo": Case(
        "DeMoStrategy",
        {"compression_topk": 3, "compression_chunk": 4, "lr": 0.01, "weight_decay": 0.1},
        dtype=torch.float64,
    ),
    "streaming": Case("StreamingDiLoCoStrategy", {**SGD, "H": 4, "fragments": 2}, steps=13),
    "streaming, overlapped": Case(
        "StreamingDiLoCoStrategy",
        {**ADAMW, "H": 6, "fragments": 2, "overlap_steps": 2, "mix": 0.25},
        steps=17,
    ),
    "streaming, int4": Case(
        "StreamingDiLoCoStrategy", {**SGD, "H": 4, "fragments": 2, "codec": "int4"}
    ),
    "noloco": Case("NoLoCoStrategy", {**SGD, "H": 2, "gossip": 0.4}),
    "noloco of 3": Case("NoLoCoStrategy", {**SGD, "H": 2, "group_size": 3}),
    "sparse_loco": Case("SparseLoCoStrategy", {**SGD, "H": 2, "chunk": 50, "density": 0.1}),
    "sparse_loco, 5 bits": Case("SparseLoCoStrategy", {**SGD, "H": 2, "bits": 5, "chunk": 64}),
}

_found: dict[str, list[Outcome]] = {}


@pytest.fixture
def outcomes(cluster: EngineCluster) -> dict[str, list[Outcome]]:
    """Case -> outcome of each node; all cases train in one run."""
    if not _found:
        by_rank = cluster.run(train_all, list(CASES.values()), world_size=NODES)
        _found.update(zip(CASES, map(list, zip(*by_rank, strict=True)), strict=True))
    return _found


def difference(outcome: list[Outcome], case: Case) -> float:
    """Return the largest relative difference of any weight, node and step."""
    right = Oracle(case, NODES).run()
    return max(
        float((found - wanted).abs().max() / wanted.abs().max())
        for node, one in enumerate(outcome)
        for found, wanted in zip(one.weights, right[node], strict=True)
    )


@pytest.mark.parametrize("name", CASES)
def test_nodes_compute_what_one_process_does(outcomes: dict[str, list[Outcome]], name: str) -> None:
    assert difference(outcomes[name], CASES[name]) < TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_the_bytes_counted_are_those_planned(outcomes: dict[str, list[Outcome]], name: str) -> None:
    case = CASES[name]
    config = case.strategy().config
    assert config is not None
    shapes = {key: tuple(one.shape) for key, one in net().named_parameters() if one.requires_grad}
    plan = plan_strategy(config, shapes, NODES, SEED, element_bytes=case.dtype.itemsize)
    rows = list(plan.rows(case.steps))
    deviation = math.sqrt(sum(rule.deviation**2 * case.steps for rule in plan.rules))
    for node, outcome in enumerate(outcomes[name]):
        planned_ = [row for row in rows if row["node"] == node]
        assert [(one.step, one.operation) for one in outcome.messages] == [
            (row["step"], row["operation"]) for row in planned_
        ]
        for size in ("payload_bytes", "sent_bytes"):
            counted = sum(getattr(one, size) for one in outcome.messages)
            wanted = sum(row[size] for row in planned_)
            assert counted == pytest.approx(wanted, abs=3 * 1.5 * deviation + 1e-6)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("simple_reduce", (1, 9)),
        ("fedavg", (3, 6, 9)),
        ("diloco", (3, 6, 9)),
        ("diloco, offset", (4, 7)),
        ("diloco, int8", (2, 4)),
        ("sparta_diloco", (3, 6)),
        ("sparse_loco", (2, 4)),
        ("demo", (1, 9)),
    ],
)
def test_nodes_hold_the_same_bits_after_a_full_exchange(
    outcomes: dict[str, list[Outcome]], name: str, steps: tuple[int, ...]
) -> None:
    for step in steps:
        first, *others = (one.weights[step - 1] for one in outcomes[name])
        assert all(torch.equal(first, other) for other in others)
    if name in ("fedavg", "diloco"):
        assert not torch.equal(outcomes[name][0].weights[1], outcomes[name][1].weights[1])


@replacing
def mask_of_its_own(original: Any, self: Any, *given: Any) -> Any:
    import dataclasses

    import torch.distributed as dist

    return original(dataclasses.replace(self, seed=self.seed + dist.get_rank()), *given)


def one_step_late(original: Any) -> Any:
    return lambda self, step: original(self, step - 1)


@pytest.mark.parametrize(
    ("target", "make", "name"),
    [
        (seams.OUTER_WEIGHTS, OUTER_WEIGHTS_SHARED.make, "diloco"),
        (seams.MASK_INDICES, mask_of_its_own, "sparta, sequential"),
        (seams.EXCHANGE_NUMBER, one_step_late, "diloco"),
    ],
    ids=["shared memory", "a mask per rank", "a step late"],
)
def test_planted_faults_are_found(
    cluster: EngineCluster, target: str, make: Any, name: str
) -> None:
    with planted(cluster, target, make, NODES):
        found = cluster.run(train_all, [CASES[name]], world_size=NODES)
    assert difference([one for (one,) in found], CASES[name]) > 100 * TOLERANCE
