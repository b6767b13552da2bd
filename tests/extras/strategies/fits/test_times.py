"""How long a fit takes on an emulated network: the arithmetic, without a clock."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.config import StrategyConfig
from mimokit.engine.strategies import communicate
from mimokit.extras.strategies.exchanges import StrategyPlan, plan_strategy
from mimokit.extras.strategies.fits.records import NodeStep
from mimokit.extras.strategies.fits.tables import FitTimes
from mimokit.extras.strategies.network import Network
from mimokit.extras.strategies.nodes.communicate import emulated_end

NETWORK = Network("8 Mbit/s", "10 ms", efficiency=1.0)


def planned(name: str, nodes: int, **arguments: Any) -> StrategyPlan:
    return plan_strategy(StrategyConfig(name=name, **arguments), {"w": (1000,)}, nodes)


def test_an_exchange_ends_so_long_after_the_last_node_was_ready() -> None:
    assert emulated_end([5.0, 7.0, 6.0], 7.5, 2.0) == 9.0
    assert emulated_end([5.0, 1e9], 5.5, 2.0) == 7.5, "a clock of another machine"


class Clock:
    """A monotonic clock that sleeping moves on."""

    def __init__(self, begin: float) -> None:
        self.now = begin

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Arrival:
    """A message that comes at a time."""

    def __init__(self, clock: Clock, moment: float) -> None:
        self.clock, self.moment = clock, moment

    def wait(self) -> None:
        self.clock.now = max(self.clock.now, self.moment)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of node 0 of two; node 1 is ready 0.25 s after it."""
    clock, other = Clock(100.0), 0.25

    def swap(pairs: Sequence[tuple[torch.Tensor, torch.Tensor, int]]) -> list[Any]:
        ((out, into, _),) = pairs
        into.fill_(float(out) + other)
        return [Arrival(clock, float(into))]

    ledger = communicate.start_ledger()
    ledger.pace = lambda operation, payload, group: 2.0
    monkeypatch.setattr(communicate, "time", clock)
    monkeypatch.setattr(communicate, "_send_and_receive", swap)
    monkeypatch.setattr(communicate, "_this_node", lambda: 0)
    monkeypatch.setattr(communicate, "count_nodes", lambda: 2)
    return clock


def test_the_real_exchange_takes_none_of_the_emulated_time(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communicate.dist, "all_reduce", lambda *_, **__: clock.sleep(0.7))
    communicate.all_reduce(torch.ones(3))
    assert clock.now == pytest.approx(100 + 0.25 + 2.0)
    assert communicate.ledger.seconds == pytest.approx(2.25)


def test_a_real_exchange_that_takes_longer_is_not_cut(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communicate.dist, "all_reduce", lambda *_, **__: clock.sleep(5.0))
    communicate.all_reduce(torch.ones(3))
    assert clock.now == pytest.approx(105.0)


def test_what_no_algorithm_asks_for_is_not_held_up(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communicate.dist, "all_reduce", lambda *_, **__: clock.sleep(0.7))
    with communicate.ledger.counting("evaluation"):
        communicate.all_reduce(torch.ones(3))
    assert clock.now == pytest.approx(100.7)


@pytest.mark.parametrize(("computed", "waited"), [(0.0, 2.25), (1.5, 0.75), (4.0, 0.0)])
def test_steps_overlap_an_exchange_that_is_under_way(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, computed: float, waited: float
) -> None:
    """Beginning waits for nobody, also not for the node that is ready later."""
    real = Arrival(clock, 100.3)
    monkeypatch.setattr(communicate.dist, "all_reduce", lambda *_, **__: real)
    wait = communicate.begin_all_reduce(torch.ones(3))
    assert clock.now == 100.0
    clock.now += computed
    wait()
    assert clock.now == pytest.approx(100 + computed + waited)
    assert communicate.ledger.seconds == pytest.approx(waited)


def records(computed: np.ndarray[Any, Any], plan: StrategyPlan, held: float) -> Any:
    """Return what nodes report that all exchange after each step, which takes `held` seconds."""
    found: dict[int, dict[int, NodeStep]] = {}
    for step, row in enumerate(computed.tolist(), start=1):
        until = max(row) + held
        found[step] = {
            node: NodeStep(node, step, 4, 1.0, 0.1, busy, until) for node, busy in enumerate(row)
        }
    return found


@settings(max_examples=30)
@given(
    st.integers(1, 6).flatmap(
        lambda steps: st.lists(
            st.lists(st.floats(0.001, 1.0), min_size=3, max_size=3), min_size=steps, max_size=steps
        )
    )
)
def test_an_exact_emulation_takes_as_long_as_predicted(computed: list[list[float]]) -> None:
    """Whichever node is slow in which step; means over steps would predict too little."""
    plan, busy = planned("simple_reduce", 3), np.array(computed)
    held = NETWORK.exchange_seconds(next(plan.exchanges(1)), range(3))
    times = FitTimes.of(plan, NETWORK, records(busy, plan, held), len(busy))
    for row in times.columns().values():
        assert row["predicted_seconds"] == pytest.approx(row["seconds"])
    found = times.prediction()
    assert found.wall_seconds == pytest.approx(busy.max(axis=1).sum() + len(busy) * held)
    assert found.round_seconds * len(busy) == pytest.approx(found.wall_seconds)
    assert found.waiting_seconds == pytest.approx((busy.max(axis=1)[:, None] - busy).mean())


def test_steps_between_exchanges_have_times_too() -> None:
    plan = planned("fedavg", 2, H=2)
    busy = np.array([[0.1, 0.3], [0.1, 0.1], [0.5, 0.2]])
    times = FitTimes.of(plan, NETWORK, records(busy, plan, 0.0), 3)
    held = NETWORK.exchange_seconds(next(plan.exchanges(2)), range(2))
    found = [row["predicted_seconds"] for row in times.columns().values()]
    assert found == pytest.approx([0, 0.3, 0.4 + held, 0.9 + held])
