"""No rank waits indefinitely where the messages of a communicator hold it, as with NCCL."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mimokit
from mimokit.planning.message_order import RankMessage, channels, check_messages
from mimokit.planning.schedule import ScheduleError, check_actions
from tests.layouts_apart import apart_config
from tests.layouts_drawn import numbered_config
from tests.whole_runs import WHOLE_RUNS

FROM_FILES = ("modules that start from weights", "a whole LLaVA")


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 20))
def test_drawn_layouts_pass(number: int) -> None:
    plan = mimokit.plan(numbered_config(number))
    check_messages(plan)
    check_actions(plan.program.schedule.all_actions(), blocking_sends=True)


def test_all_layouts_that_are_run_pass() -> None:
    plans = [mimokit.plan(run.make()) for run in WHOLE_RUNS if run.proves not in FROM_FILES]
    staged = [plan for plan in plans if plan.pipeline is not None]
    assert len(staged) > 30
    for plan in staged:
        check_messages(plan)
        check_actions(plan.program.schedule.all_actions(), blocking_sends=True)


def test_one_communicator_for_both_ways_is_found() -> None:
    plan = mimokit.plan(apart_config((1, 1, 1), (1, 2, 1), 2))
    assert channels(plan) == ((0, 0), (0, 1), (1, 0), (1, 1))
    with pytest.raises(ScheduleError) as caught:
        check_messages(plan, lambda message: message.edge)
    assert str(caught.value) == (
        "Wait cycle: rank 1 waits in receive-backward of 0 ('language_module') from stage 2 behind "
        "its send-forward of 1 ('language_module') to stage 2, rank 2 waits in receive-forward of "
        "1 ('language_module') from stage 1 behind its send-backward of 0 ('language_module') to "
        "stage 1, and so the first again."
    )


def test_messages_that_would_be_mixed_up_are_found() -> None:
    """Two messages of a pair: both headers are awaited before what either describes."""
    plan = mimokit.plan(apart_config((1, 1, 1), (1, 1, 1), 1))
    (bridge,) = plan.disjoint_bridges
    (transfer,) = bridge.forward.transfers
    half = transfer.stop // 2
    parts = (dataclasses.replace(transfer, stop=half), dataclasses.replace(transfer, start=half))
    cut = dataclasses.replace(bridge, forward=dataclasses.replace(bridge.forward, transfers=parts))
    planted = dataclasses.replace(plan, bridges=(cut,))
    with pytest.raises(ScheduleError, match=r"meets .* in one queue, which would mix them up"):
        check_messages(planted)
    check_messages(planted, lambda message: message)


def test_a_message_has_the_communicator_of_its_edge_and_direction() -> None:
    message = RankMessage(edge=3, direction=1, microbatch=2, source=0, destination=5)
    assert message.channel == (3, 1)
