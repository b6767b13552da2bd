"""Links, rings and rounds, against what is worked out by hand."""

import itertools
from typing import Any

import numpy as np
import pytest

from mimokit.config import ConfigError, StrategyConfig
from mimokit.extras.strategies.exchanges import StrategyPlan, plan_of_size, plan_strategy
from mimokit.extras.strategies.network import Network, predict_strategy, strategy_timeline
from tests.rows import rows

ENTRIES = 250_000
MEGABYTE = 8e6 / 1e9  # seconds of 10**6 bytes on 1 Gbit/s
GIGABIT = Network("1 Gbit/s", "5 ms", efficiency=1.0, spread=0.0)


def planned(name: str, nodes: int = 4, **arguments: Any) -> StrategyPlan:
    config = StrategyConfig(name=name, **arguments)
    return plan_strategy(config, {"w": (ENTRIES,)}, nodes)


def exchange_seconds(network: Network, plan: StrategyPlan) -> float:
    first = next(plan.exchanges(1000))
    return max(network.exchange_seconds(first, group) for group in first.groups)


def test_a_ring_takes_its_rounds() -> None:
    ring = exchange_seconds(GIGABIT, planned("diloco"))
    assert ring == pytest.approx(6 * (0.005 + MEGABYTE / 4))
    assert exchange_seconds(GIGABIT, planned("diloco", 1)) == 0
    pair = exchange_seconds(GIGABIT, planned("noloco"))
    assert pair == pytest.approx(0.005 + 2 * MEGABYTE)
    payload = next(planned("demo").exchanges(1)).payload_bytes(4)
    gather = exchange_seconds(GIGABIT, planned("demo"))
    assert gather == pytest.approx(3 * (0.005 + payload / 1e6 * MEGABYTE))


def test_bytes_and_bits_per_second_agree() -> None:
    plan = planned("diloco")
    assert exchange_seconds(Network("125 MB/s"), plan) == exchange_seconds(Network("1 Gbps"), plan)


def test_jitter_is_that_of_the_latest_message() -> None:
    late = Network("1 Gbit/s", "5 ms", "10 ms", efficiency=1.0)
    extra = exchange_seconds(late, planned("diloco")) - exchange_seconds(GIGABIT, planned("diloco"))
    assert extra == pytest.approx(6 * 0.010 * 4 / 5)


@rows(
    "name, arguments",
    ("simple_reduce", {}),
    ("fedavg", {"H": 7}),
    ("diloco", {"H": 10, "sync_offset": 1}),
    ("sparta_diloco", {"H": 10, "p_sparta": 0.1}),
    ("demo", {}),
    ("streaming_diloco", {"H": 20, "overlap_steps": 0}),
    ("sparse_loco", {"H": 5}),
)
def test_the_timeline_takes_as_long_as_the_formula(name: str, arguments: dict[str, Any]) -> None:
    network = Network("100 Mbit/s", "5 ms")
    plan = planned(name, **arguments)
    line = strategy_timeline(plan, network, 0.02, 50)
    found = predict_strategy(plan, network, 0.02, steps=50)
    assert line.wall_seconds == pytest.approx(found.wall_seconds)
    for node in range(4):
        blocks = [block for block in line.blocks if block.node == node]
        assert blocks[0].start == 0
        assert all(a.stop == b.start for a, b in itertools.pairwise(blocks))


def test_overlapped_exchanges_cost_what_steps_do_not_cover() -> None:
    network = Network("100 Mbit/s", efficiency=1.0, spread=0.0)
    walls = []
    for overlap in (0, 2):
        plan = planned("streaming_diloco", H=20, fragments=1, overlap_steps=overlap)
        walls.append(strategy_timeline(plan, network, 0.02, 40).wall_seconds)
    each = 6 * 8e6 / 4 / 1e8
    assert walls[0] == pytest.approx(40 * 0.02 + 2 * each)
    # The second exchange begins with the last step, so that nothing is left to overlap it.
    assert walls[1] == pytest.approx(40 * 0.02 + each - 2 * 0.02)


def test_nodes_wait_for_the_slowest() -> None:
    network = Network("1 Gbit/s", speeds=(1, 1, 1, 0.5), efficiency=1.0)
    plan = planned("diloco", H=10)
    line = strategy_timeline(plan, network, 0.02, 20)
    assert line.seconds("wait") == pytest.approx((0.4, 0.4, 0.4, 0))
    found = predict_strategy(plan, network, 0.02, steps=20)
    assert found.round_seconds == pytest.approx(10 * 0.04 + 6 * MEGABYTE / 4)
    assert found.compute_utilisation == pytest.approx(0.4 / found.round_seconds)


def test_each_step_of_each_node_may_have_a_time() -> None:
    """Two nodes take turns in being slow: each round waits for the slower one, by hand."""
    network = Network("1 Gbit/s", efficiency=1.0)
    plan = planned("fedavg", 2, H=2)
    computed = np.array([[0.1, 0.3], [0.1, 0.1], [0.5, 0.2], [0.1, 0.1], [0.2, 0.1]])
    line = strategy_timeline(plan, network, computed, 5)
    assert line.seconds("compute") == pytest.approx((1.0, 0.8))
    assert line.seconds("wait") == pytest.approx((0.2, 0.3))
    assert line.wall_seconds == pytest.approx(0.4 + 0.6 + 0.2 + 2 * MEGABYTE * 2 / 2)
    even = strategy_timeline(plan, network, np.full((5, 2), 0.1), 5)
    same = strategy_timeline(plan, Network("1 Gbit/s", efficiency=1.0, spread=0.0), 0.1, 5)
    assert even.wall_seconds == pytest.approx(same.wall_seconds)


@rows(
    "name, field",
    ("diloco", "H"),
    ("sparta", "sparta_interval"),
    ("streaming_diloco", "H"),
    ("noloco", "H"),
)
def test_the_smallest_h_reaches_the_utilisation_and_the_next_smaller_does_not(
    name: str, field: str
) -> None:
    network = Network("100 Mbit/s", "1 ms")
    arguments = {"fragments": 2} if name == "streaming_diloco" else {}

    def found(length: int) -> Any:
        plan = planned(name, **{field: length}, **arguments)
        return predict_strategy(plan, network, 0.01, target_utilisation=0.8)

    smallest = found(10).smallest_h
    unit = arguments.get("fragments", 1)
    assert found(smallest).compute_utilisation >= 0.8
    assert smallest == unit or found(smallest - unit).compute_utilisation < 0.8


def test_there_is_no_smallest_h_where_none_is_enough() -> None:
    slow = Network("1 Mbit/s", "30 ms")
    plan = planned("sparta_diloco", p_sparta=0.1)
    assert predict_strategy(plan, slow, 0.001).smallest_h is None
    assert predict_strategy(planned("demo"), slow, 0.001).smallest_h is None


@rows(
    "parameters, name",
    *itertools.product([1, 4095, 4097, 30_846_720], ["diloco", "demo", "streaming_diloco"]),
)
def test_a_plan_without_a_model_has_all_parameters(name: Any, parameters: int) -> None:
    assert plan_of_size(StrategyConfig(name=name), parameters, 4).entries == parameters


@rows(
    "make, sentence",
    (lambda: Network("200"), "network.bandwidth is '200': it has no unit; write 200 Mbit/s"),
    (lambda: Network("0 Mbit/s"), "network.bandwidth is '0 Mbit/s': it must be above 0"),
    (lambda: Network("-1 MB/s"), "it must be above 0"),
    (lambda: Network("fast"), "network.bandwidth is 'fast': it is not a bandwidth"),
    (lambda: Network("1 Gbit/s", "5"), "network.latency is '5': it has no unit; write 30 ms"),
    (lambda: Network("1 Gbit/s", "-5 ms"), "it must be at least 0"),
    (lambda: Network("1 Gbit/s", speeds=(1, 0)), "network.speeds is (1, 0); each must be"),
    (lambda: Network("1 Gbit/s", efficiency=0), "network.efficiency is 0; it must be above"),
    (lambda: Network("1 Gbit/s", spread=-1), "network.spread is -1; it must be at least 0"),
    (lambda: Network("1 Gbit/s", speeds=(1,)).check_nodes(2), "one for each of the 2 nodes"),
)
def test_what_is_no_network_is_rejected(make: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert sentence in str(caught.value)
