"""Ranks on shared cores, where the answer is known."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.prediction.local_cpu.simulator import (
    Collective,
    Compute,
    Operation,
    Recv,
    Send,
    Span,
    all_reduce,
    run_shared,
)

SECONDS = st.floats(1e-4, 1.0)


def named(kind: str) -> Span:
    return Span(None, kind)


def test_ranks_on_cores_of_their_own_take_the_longest() -> None:
    assert run_shared(
        [[Compute(named("a"), 1.0)], [Compute(named("a"), 3.0)]], 2
    ).seconds == pytest.approx(3)


def test_ranks_on_one_core_take_the_sum() -> None:
    assert run_shared(
        [[Compute(named("a"), 1.0)], [Compute(named("a"), 3.0)]], 1
    ).seconds == pytest.approx(4)


def test_a_rank_that_waits_leaves_its_share_to_others() -> None:
    # Half a core each until 2, when rank 0 begins to wait; rank 1 does its last second alone.
    meet = (0, 1)
    programs = [
        [Compute(named("a"), 1.0), Collective(named("m"), 0.0, meet)],
        [Compute(named("a"), 2.0), Collective(named("m"), 0.0, meet)],
    ]
    found = run_shared(programs, 1)
    assert found.seconds == pytest.approx(3)
    waits = next(span for span in found.spans if span.rank == 0 and span.span == named("m"))
    assert (waits.start, waits.stop) == (pytest.approx(2), pytest.approx(3))


def test_a_chain_takes_its_critical_path_however_many_cores() -> None:
    programs = [
        [Compute(named("a"), 1.0), Send(named("s"), 0.5, "x")],
        [Recv(named("r"), 0.25, "x"), Compute(named("b"), 2.0)],
    ]
    assert run_shared(programs, 8).seconds == pytest.approx(3.75)


@given(st.lists(st.lists(SECONDS, min_size=1, max_size=4), min_size=1, max_size=6), SECONDS)
@settings(max_examples=50)
def test_never_quicker_than_either_bound(rounds: list[list[float]], cores: float) -> None:
    ranks = len(rounds)
    everyone = tuple(range(ranks))
    count = min(map(len, rounds))
    programs: list[list[Operation]] = [
        [Collective(named("m"), seconds, everyone) for seconds in row[:count]] for row in rounds
    ]
    found = run_shared(programs, cores * ranks)
    path = sum(max(row[i] for row in rounds) for i in range(count))
    spent = sum(sum(row[:count]) for row in rounds)
    assert found.seconds >= max(path, spent / (cores * ranks)) * (1 - 1e-9)
    assert sum(found.cpu_seconds) == pytest.approx(spent)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_single_number_keeps_one_rank_busy_at_a_time(ranks: int) -> None:
    """However many cores: many numbers are added up side by side, one is handed around."""
    members = range(ranks)
    one, many = (
        run_shared([all_reduce(named("sum"), members, 0.5, numbers, r) for r in members], ranks)
        for numbers in (1, 100)
    )
    assert many.seconds == pytest.approx(0.5)
    assert one.seconds == pytest.approx(0.5 * ranks)
    assert sum(one.cpu_seconds) == pytest.approx(sum(many.cpu_seconds))


def test_a_single_number_waits_for_the_last_rank() -> None:
    programs = [
        [Compute(named("late"), late), *all_reduce(named("sum"), (0, 1), 0.5, 1, r)]
        for r, late in ((0, 1.0), (1, 3.0))
    ]
    assert run_shared(programs, 2).seconds > 3.0


def test_programs_that_wait_for_ever_are_refused() -> None:
    with pytest.raises(ValueError, match="Rank 0 waits indefinitely in 'r'"):
        run_shared([[Recv(named("r"), 0.1, "never")], [Compute(named("a"), 1.0)]], 2)


def test_no_cores_are_refused() -> None:
    with pytest.raises(ValueError, match="cores is 0"):
        run_shared([[Compute(named("a"), 1.0)]], 0)
