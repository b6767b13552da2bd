"""Replicas of a layout: ranks, peers, bytes and what a strategy keeps, by brute force."""

import json
import pickle
from typing import Any

import pytest

import mimokit
from mimokit.architecture.from_config import model_of_config
from mimokit.config import ConfigError, ExperimentConfig, StrategyConfig
from mimokit.extras.strategies.exchanges.shapes import in_order
from mimokit.planning.types import LayoutPlan
from tests.planning.layouts import layout, sizes
from tests.rows import rows

MiB = 2**20


def with_strategy(config: ExperimentConfig, **strategy: Any) -> ExperimentConfig:
    changed = config.model_copy(deep=True)
    changed.strategy = StrategyConfig(**strategy)
    return changed


def small(**strategy: Any) -> ExperimentConfig:
    config = layout("colocated", sizes(tp=2), 4, vision=sizes(dp=2))
    for network in config.model.module_architectures.values():
        network.num_layers = 2
    return with_strategy(config, **strategy)


def planned(config: ExperimentConfig) -> tuple[LayoutPlan, dict[str, Any]]:
    plan = mimokit.plan(config)
    return plan, json.loads(json.dumps(plan.to_json()))["strategy"]


def test_ranks_with_the_same_place_exchange() -> None:
    plan, found = planned(small(name="diloco", replicas=3, H=20))
    assert plan.world_size == 6
    assert found["peers"] == {
        "0": [2, 4], "1": [3, 5], "2": [0, 4], "3": [1, 5], "4": [0, 2], "5": [1, 3],
    }  # fmt: skip
    assert found["ranks"] == {"0": [0, 1], "1": [2, 3], "2": [4, 5]}
    first = plan.of_replica(2)
    assert (first.world_size, first.batch.replica, first.batch.replicas) == (2, 2, 3)
    assert first.replicas is None


def test_each_rank_exchanges_what_it_trains() -> None:
    config = small(name="diloco", replicas=2, H=20)
    _, found = planned(config)
    model = model_of_config(config.model)
    (branch,) = model.branches
    # The projector's and language model's matrices are halved, but not the encoder (TP 1).
    for rank in ("0", "1"):
        assert found["bytes_per_exchange"][rank] == 4 * found["parameters"][rank]
        assert found["sent_bytes_per_exchange"][rank] == found["bytes_per_exchange"][rank]
        assert found["outer_state_bytes"][rank] == 8 * found["parameters"][rank]
        least = branch.parameters + model.language.parameters / 2
        assert least <= found["parameters"][rank] < least * 1.01


def test_a_frozen_module_is_not_exchanged() -> None:
    config = small(name="fedavg", replicas=2)
    whole = planned(config)[1]["parameters"]["0"]
    encoder = config.model.module_architectures["vision"]
    (branch,) = model_of_config(config.model).branches
    config.model.module_architectures["vision"] = encoder.model_copy(update={"frozen": True})
    assert whole - planned(config)[1]["parameters"]["0"] == branch.parameters
    parts = encoder.model_copy(update={"frozen": ["encoder"]})
    config.model.module_architectures["vision"] = parts
    assert whole - planned(config)[1]["parameters"]["0"] == branch.encoder.parameters


def test_stages_exchange_their_own_layers() -> None:
    config = layout("heterogeneous", sizes(pp=2, offset=1), 4, vision=sizes())
    _, found = planned(with_strategy(config, name="diloco", replicas=4, H=5))
    model = model_of_config(config.model)
    assert found["parameters"]["0"] == model.branches[0].parameters
    assert found["parameters"]["1"] + found["parameters"]["2"] == model.language.parameters
    assert found["bytes_per_exchange"]["1"] == 4 * found["parameters"]["1"]


@rows("interval, is_said", (300, False), (301, True), (5000, True))
def test_a_strategy_that_never_exchanges_says_so(interval: int, is_said: bool) -> None:
    config = small(replicas=2, name="diloco", H=interval)
    config.runtime.num_iterations = 300
    assert ("Nothing is ever exchanged" in str(mimokit.plan(config))) == is_said


@rows(
    "strategy, due",
    ({"name": "diloco", "H": 4}, [4, 8]),
    ({"name": "diloco", "H": 4, "sync_offset": 1}, [5, 9]),
    ({"name": "simple_reduce"}, list(range(1, 11))),
)
def test_exchanges_are_due_in_the_run(strategy: dict[str, Any], due: list[int]) -> None:
    config = small(replicas=2, **strategy)
    config.runtime.num_iterations = 10
    assert planned(config)[1]["due"] == due


def test_a_replica_shares_one_line() -> None:
    network = {"bandwidth": "8 Mbit/s", "latency": "10 ms"}
    _, found = planned(small(name="diloco", replicas=2, H=20, network=network))
    (seconds,) = found["exchange_seconds"].values()
    both = sum(found["bytes_per_exchange"].values())
    # A ring of two sends half in each of two rounds, over a line that gives 92.4 % to payload.
    assert seconds == pytest.approx(2 * (0.01 + both / 2 / 1e6 / 0.924))


def test_a_plan_says_it_in_words_and_can_be_pickled() -> None:
    config = small(
        name="diloco", replicas=2, H=20, network={"bandwidth": "1 Gbit/s", "latency": "30 ms"}
    )
    config.runtime.num_iterations = 100
    plan, _ = planned(config)
    text = " ".join(str(plan).split())
    assert "4 ranks in 2 replicas" in text
    assert "outer step: all-reduce after every 20 steps, first after 20; 5 in the 100" in text
    assert "over its line of 1 Gbit/s with 30 ms" in text
    assert "diloco between 2 replicas of 2 ranks" in plan._repr_html_()
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_a_plan_says_which_links_exchanges_cross() -> None:
    """Engines of two hosts, listed in turn; then hosts with room for one and a half replicas."""
    config = small(name="diloco", replicas=2, H=20)
    assert planned(config)[1]["hosts"] is None
    found = json.loads(json.dumps(mimokit.plan(config, hosts=["a", "b", "a", "b"]).to_json()))
    found = found["strategy"]
    assert found["hosts"] == {"0": "a", "1": "a", "2": "b", "3": "b"}
    assert found["links"] == {"0": [["a", "b"]], "1": [["a", "b"]]}
    assert found["split_replicas"] == []
    text = " ".join(str(mimokit.plan(config, hosts=["a", "b", "a", "b"])).split())
    assert "Replicas on hosts: 0 on a, 1 on b." in text
    assert "Exchanges of ranks 0–1 of the replicas cross the link a – b." in text
    config = small(name="diloco", replicas=3, H=20)
    plan = mimokit.plan(config, hosts=[*"aaabbb"])
    assert plan.replicas is not None
    assert (plan.replicas.links(0), plan.replicas.links(1)) == ((("a", "b"),), (("a", "b"),))
    assert "Replica 2 of 2 ranks is spread over the hosts a, b" in " ".join(str(plan).split())
    one = " ".join(str(mimokit.plan(config, hosts=["a"] * 6)).split())
    assert "cross no link between hosts" in one


@rows(
    "strategy, hosts, sentence",
    ({"name": "diloco", "replicas": 2}, ["a", "b"], "which makes 4 ranks with 2 each, but the"),
    (None, ["a"] * 8, "The layout has no replicas that could be placed on hosts"),
)
def test_hosts_without_room_or_replicas_are_rejected(
    strategy: Any, hosts: list[str], sentence: str
) -> None:
    config = small(name="fedavg") if strategy is None else small(**strategy)
    if strategy is None:
        config.strategy = None
    with pytest.raises(ConfigError, match=sentence):
        mimokit.plan(config, hosts=hosts)


def test_parts_of_a_model_have_one_order() -> None:
    names = ["b.layers.10.w", "b.layers.9.w", "a.x"]
    assert list(in_order(dict.fromkeys(names, (1,)))) == ["a.x", "b.layers.9.w", "b.layers.10.w"]
