"""A plan of a strategy: which nodes exchange what, when, and how many bytes that is."""

import dataclasses
import math
import pickle
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.config import ConfigError, StrategyConfig
from mimokit.config.strategy import TAKES
from mimokit.extras.strategies.exchanges import StrategyPlan, plan_strategy
from tests.extras.strategies.exchanges.brute_force import due
from tests.rows import rows

SHAPES = {"embed": (50, 8), "layers.0.w": (8, 8), "layers.1.w": (8, 8), "head": (10,), "scale": ()}
ENTRIES = 400 + 64 + 64 + 10 + 1


def planned(name: str, nodes: int = 4, seed: int = 1, **arguments: Any) -> StrategyPlan:
    return plan_strategy(StrategyConfig(name=name, **arguments), SHAPES, nodes, seed)


@st.composite
def plans(draw: st.DrawFn) -> StrategyPlan:
    name = draw(st.sampled_from(sorted(TAKES)))
    nodes = draw(st.integers(1, 9))
    fragments = draw(st.integers(1, 4))
    given_values: dict[str, st.SearchStrategy[Any]] = {
        "H": st.integers(1, 5).map(lambda n: n * fragments),
        "sync_offset": st.integers(0, 7),
        "sparta_interval": st.integers(1, 4),
        "index_selector": st.sampled_from(["random", "shuffled_sequential", "partitioned"]),
        "p_sparta": st.floats(0.05, 1),
        "island_size": st.integers(1, nodes),
        "group_size": st.integers(1, nodes),
        "fragments": st.just(fragments),
        "codec": st.sampled_from([None, "int8", "int4"]),
    }
    arguments = {key: draw(values) for key, values in given_values.items() if key in TAKES[name]}
    if arguments.get("codec"):
        arguments.pop("island_size", None)  # islands send in full precision
    return planned(name, nodes, draw(st.integers(0, 5)), **arguments)


@settings(max_examples=60)
@given(plans())
def test_exchanges_fall_due_as_described(plan: StrategyPlan) -> None:
    steps = 45
    found = [(one.step, one.rule.purpose) for one in plan.exchanges(steps)]
    assert found == [
        (step, purpose) for step in range(1, steps + 1) for purpose in due(plan.config, step)
    ]
    for step in range(steps + 1):
        assert [one.rule.purpose for one in plan.begins(step)] == due(plan.config, step)


@settings(max_examples=60)
@given(plans())
def test_every_node_is_in_one_group_and_the_bytes_add_up(plan: StrategyPlan) -> None:
    sent: dict[str, np.ndarray[Any, Any]] = {}
    for one in plan.exchanges(30):
        assert sorted(node for group in one.groups for node in group) == list(range(plan.nodes))
        total = sent.setdefault(one.rule.purpose, np.zeros(plan.nodes))
        for node in range(plan.nodes):
            total[node] += one.sent_bytes(len(one.group_of(node)))
    for purpose, counted in plan.sent(30).items():
        assert counted == pytest.approx(sent.get(purpose, np.zeros(plan.nodes)))
    rows = list(plan.rows(30))
    assert sum(row["sent_bytes"] for row in rows) == pytest.approx(sum(map(np.sum, sent.values())))


@settings(max_examples=40)
@given(plans())
def test_every_node_plans_the_same_and_in_any_order(plan: StrategyPlan) -> None:
    """A plan that is made again, or sent, gives the same groups and entries."""
    other = pickle.loads(pickle.dumps(dataclasses.replace(plan)))
    steps = list(plan.exchanges(30))
    for one, again in zip(reversed(steps), reversed(list(other.exchanges(30))), strict=True):
        assert one.groups == again.groups
        for name in one.rule.tensors:
            assert np.array_equal(plan.indices(one, name), other.indices(again, name))


@rows(
    "name, arguments, payload",
    ("simple_reduce", {}, 4 * ENTRIES),
    ("fedavg", {}, 4 * ENTRIES),
    ("fedavg", {"weighting": "samples"}, 4 * ENTRIES + 4),
    ("sparta", {"p_sparta": 0.01}, 4 * 0.01 * ENTRIES),
    ("diloco", {}, 4 * ENTRIES),
    ("diloco", {"codec": "int8"}, 4 * (256 + 4)),  # 3 blocks, one for each of 4 nodes
    ("diloco", {"codec": "int4"}, 4 * (128 + 4)),
    # 50 x 8 is one block, 8 x 8 too, 10 and the scalar have one dimension.
    ("demo", {"compression_topk": 4}, (4 + 4 + 4 + 4 + 1) * 6),
    ("noloco", {}, 8 * ENTRIES),
    # 2 % of 400, 64, 64, 10 and 1: at least one each; 2 bytes, 2 bits, a scale.
    ("sparse_loco", {}, (8 * 2 + 2 + 4) + 4 * (2 + 1 + 4)),
)
def test_payloads(name: str, arguments: dict[str, Any], payload: float) -> None:
    first = next(planned(name, **arguments).exchanges(100))
    assert first.payload_bytes(4) == pytest.approx(payload)
    sends = 3 if name in ("demo", "sparse_loco") else 1.5
    assert first.sent_bytes(4) == pytest.approx(sends * payload)


def test_fragments_share_the_payload() -> None:
    plan = planned("streaming_diloco", fragments=2)
    assert sum(rule.payload(0, 4) for rule in plan.rules) == 4 * ENTRIES
    assert [rule.tensors for rule in plan.rules] == [
        ("embed", "layers.0.w"),
        ("layers.1.w", "head", "scale"),
    ]


def test_results_are_written_later_where_something_overlaps() -> None:
    plan = planned("streaming_diloco", H=10, fragments=2, overlap_steps=3)
    assert [(one.step, one.finish) for one in plan.exchanges(20)] == [(10, 13), (15, 18), (20, 23)]
    assert [one.rule.index for one in plan.ends(13)] == [0]
    assert plan.ends(10) == ()
    assert [one.number for one in planned("sparta", delay=4).ends(5)] == [0]


def test_faults_leave_out_whole_exchanges() -> None:
    plan = planned("sparta", fault_rate=0.25)
    kept = {one.step for one in plan.exchanges(4000)}
    assert abs(len(kept) - 3000) < 3 * math.sqrt(4000 * 0.25 * 0.75)
    assert {step for step in range(1, 4001) if plan.begins(step)} == kept


def test_islands_and_masks_follow_the_seed() -> None:
    one, other = (planned("fedavg", 16, seed, island_size=4) for seed in (1, 2))
    assert [e.groups for e in one.exchanges(5)] != [e.groups for e in other.exchanges(5)]
    assert len({e.groups for e in one.exchanges(50)}) == 50


def test_ten_times_the_steps_take_ten_times_as_long() -> None:
    """Time of the processor, best of three; `benchmarks.plan_speed` has the seconds."""

    def seconds(steps: int) -> float:
        plan = planned("fedavg", 64, island_size=2)
        begin = time.process_time()
        assert len(list(plan.exchanges(steps))) == steps
        return time.process_time() - begin

    few, many = (min(seconds(steps) for _ in range(3)) for steps in (3_000, 30_000))
    assert many < 40 * few


@rows(
    "make, sentence",
    (lambda: planned("diloco", 0), "The number of nodes is 0; it must be at least 1."),
    (lambda: planned("diloco", -1), "The number of nodes is -1; it must be at least 1."),
    (
        lambda: planned("fedavg", 4, island_size=5),
        "strategy.island_size is 5, but the number of nodes is 4; it must be at most 4.",
    ),
    (
        lambda: planned("noloco", 4, group_size=8),
        "strategy.group_size is 8, but the number of nodes is 4; it must be at most 4.",
    ),
    (
        lambda: planned("diloco", 4, island_size=2, codec="int8"),
        "strategy.codec is int8, but islands send weights in full precision; leave out it or "
        "island_size.",
    ),
    (lambda: planned("fedavg", 4, seed=-1), "The seed is -1; it must be at least 0."),
)
def test_what_cannot_be_planned_is_rejected(make: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value) == sentence
