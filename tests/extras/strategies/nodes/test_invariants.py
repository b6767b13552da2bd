"""What holds of strategies whatever the model is, on four engines in fp64."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from mimokit.cluster import EngineCluster
from mimokit.engine.strategies import OptimSpec
from tests.extras.strategies.nodes.nodes import (
    Case,
    Outcome,
    SignSGD,
    batch,
    flat,
    net,
    train,
    train_all,
)

NODES = 4
WITHIN = 1e-12
SGD = OptimSpec(torch.optim.SGD, lr=0.05, momentum=0.9)
STILL = OptimSpec(torch.optim.SGD, lr=0.0)


def case(kind: str, optim_spec: OptimSpec | None = SGD, **arguments: Any) -> Case:
    spec = {} if optim_spec is None else {"optim_spec": optim_spec}
    return Case(kind, {**spec, **arguments}, steps=6, dtype=torch.float64)


def outer(**arguments: Any) -> OptimSpec:
    return OptimSpec(torch.optim.SGD, **arguments)


REDUCED = case("SimpleReduceStrategy")
EQUAL = {
    "FedAvg of every step is SimpleReduce": (case("FedAvgStrategy"), REDUCED),
    "SPARTA of all entries is SimpleReduce": (case("SPARTAStrategy", p_sparta=1.0), REDUCED),
    "DiLoCo with outer lr 1 is FedAvg": (
        case("DiLoCoStrategy", H=2, outer_optim_spec=outer(lr=1.0)),
        case("FedAvgStrategy", H=2),
    ),
    "NoLoCo of one group is DiLoCo": (
        case("NoLoCoStrategy", H=2, group_size=4),
        case("DiLoCoStrategy", H=2, outer_optim_spec=outer(lr=0.7, momentum=0.5)),
    ),
    "Streaming of one fragment is DiLoCo": (
        case("StreamingDiLoCoStrategy", H=2, fragments=1),
        case("DiLoCoStrategy", H=2),
    ),
    "DeMo of all coefficients is sign-SGD": (
        case("DeMoStrategy", None, lr=0.01, compression_topk=4096, compression_decay=0.5),
        case("SimpleReduceStrategy", OptimSpec(SignSGD, lr=0.01)),
    ),
}
SAME_DATA = {
    kind: dataclasses.replace(case(kind, **arguments), nodes_as=(0,) * NODES)
    for kind, arguments in (
        ("SimpleReduceStrategy", {}),
        ("FedAvgStrategy", {"H": 2}),
        ("SPARTAStrategy", {"p_sparta": 0.3}),
        ("DiLoCoStrategy", {"H": 2}),
        ("StreamingDiLoCoStrategy", {"H": 4, "overlap_steps": 0}),
        ("NoLoCoStrategy", {"H": 2}),
    )
}
AVERAGING = {
    kind: dataclasses.replace(case(kind, STILL, **arguments), apart=True)
    for kind, arguments in (
        ("FedAvgStrategy", {"H": 2, "island_size": 3}),
        ("SPARTAStrategy", {"p_sparta": 0.3}),
        ("NoLoCoStrategy", {"H": 1, "gossip": 0.3}),
    )
}
RENAMED = {
    kind: case(kind, **arguments)
    for kind, arguments in (
        ("SPARTAStrategy", {"p_sparta": 0.3}),
        ("SPARTADiLoCoStrategy", {"p_sparta": 0.3, "H": 4}),
    )
}
ORDER = (2, 0, 3, 1)

_found: dict[str, list[Outcome]] = {}


@pytest.fixture
def outcomes(cluster: EngineCluster) -> dict[str, list[Outcome]]:
    """Name -> outcome of each node; everything trains in one run."""
    if not _found:
        cases = {f"{name} {side}": pair[side] for name, pair in EQUAL.items() for side in (0, 1)}
        cases |= {f"same data {kind}": one for kind, one in SAME_DATA.items()}
        cases |= {f"averaging {kind}": one for kind, one in AVERAGING.items()}
        for kind, one in RENAMED.items():
            cases[f"as named {kind}"] = one
            cases[f"renamed {kind}"] = dataclasses.replace(one, nodes_as=ORDER)
        by_rank = cluster.run(train_all, list(cases.values()), world_size=NODES)
        _found.update(zip(cases, map(list, zip(*by_rank, strict=True)), strict=True))
    return _found


def apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


@pytest.mark.parametrize("name", EQUAL)
def test_one_strategy_is_another(outcomes: dict[str, list[Outcome]], name: str) -> None:
    pairs = zip(outcomes[f"{name} 0"], outcomes[f"{name} 1"], strict=True)
    last = [(one.weights[-1], other.weights[-1]) for one, other in pairs]
    assert max(apart(*pair) for pair in last) < WITHIN
    assert apart(last[0][0], flat(net(torch.float64))) > 0.01


@pytest.mark.parametrize("kind", SAME_DATA)
def test_nodes_with_the_same_data_are_one_node(
    outcomes: dict[str, list[Outcome]], kind: str
) -> None:
    alone = train(SAME_DATA[kind], 0, 1)
    for node in outcomes[f"same data {kind}"]:
        assert max(map(apart, node.weights, alone.weights)) < WITHIN


@pytest.mark.parametrize("kind", AVERAGING)
def test_averaging_leaves_the_mean_as_it_was(outcomes: dict[str, list[Outcome]], kind: str) -> None:
    nodes = [torch.stack(one.weights) for one in outcomes[f"averaging {kind}"]]
    means = torch.stack(nodes).mean(0)
    assert apart(means, flat(net(torch.float64)) + 1.5) < WITHIN
    spread = torch.stack(nodes).std(0).mean(1)
    assert spread[-1] < 0.9 * spread[0]


@pytest.mark.parametrize("kind", RENAMED)
def test_names_of_nodes_do_not_matter(outcomes: dict[str, list[Outcome]], kind: str) -> None:
    for node, renamed in enumerate(outcomes[f"renamed {kind}"]):
        named = outcomes[f"as named {kind}"][ORDER[node]]
        assert max(map(apart, renamed.weights, named.weights)) < WITHIN


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("SimpleReduceStrategy", {}),
        ("FedAvgStrategy", {"H": 2}),
        ("SPARTAStrategy", {"p_sparta": 0.3, "delay": 1}),
    ],
)
def test_one_node_is_plain_training_to_the_bit(kind: str, arguments: dict[str, Any]) -> None:
    spec = OptimSpec(torch.optim.AdamW, lr=0.01)
    one = dataclasses.replace(case(kind, spec, **arguments), dtype=torch.float32)
    model = net()
    optim = spec.build(model)
    for step, found in enumerate(train(one, 0, 1).weights):
        optim.zero_grad()
        model(batch(0, step)).backward()
        optim.step()
        assert torch.equal(found, flat(model))
