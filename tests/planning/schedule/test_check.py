"""Each check catches the fault that is planted for it."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.planning.schedule import (
    Action,
    ScheduleError,
    StageGraph,
    Step,
    check_actions,
    gpipe,
    one_forward_one_backward,
    plan_schedule,
    stage_graph,
    zero_bubble,
)
from tests.planning.schedule.graphs import stage_graphs

Programs = list[list[Action]]


def programs() -> Programs:
    graph = stage_graph({"images": ["language"], "language": []}, {"images": 1, "language": 2})
    return [list(own) for own in plan_schedule(graph, 4).all_actions()]


def place(own: list[Action], kind: str, microbatch: int) -> int:
    return next(i for i, a in enumerate(own) if (a.kind, a.microbatch) == (kind, microbatch))


def swap(own: list[Action], one: int, other: int) -> None:
    own[one], own[other] = own[other], own[one]


def refusal(found: Programs, **options: Any) -> str:
    with pytest.raises(ScheduleError) as caught:
        check_actions(found, **options)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
    return str(caught.value)


@settings(max_examples=60)
@given(
    graph=stage_graphs(),
    count=st.integers(1, 6),
    order=st.sampled_from([gpipe, one_forward_one_backward, zero_bubble]),
)
def test_our_orders_pass_on_any_graph(graph, count: int, order) -> None:
    actions = plan_schedule(graph, count, order).all_actions()
    check_actions(actions)
    check_actions(actions, blocking_sends=True)


def test_a_receive_without_a_send() -> None:
    found = programs()
    del found[0][place(found[0], "send-forward", 2)]
    assert refusal(found) == (
        "Stage 0 sends the activations of 'images' for micro-batch 2 (edge 0) to stage 1 never, "
        "but stage 1 receives it once; it takes one send and one receive."
    )


def test_a_send_without_a_receive() -> None:
    found = programs()
    del found[1][place(found[1], "receive-backward", 3)]
    assert "gradients of 'language' for micro-batch 3" in refusal(found)


def test_a_message_sent_twice() -> None:
    found = programs()
    at = place(found[1], "send-backward", 0)
    found[1].insert(at, found[1][at])
    assert "twice, but stage 0 receives it once" in refusal(found)


def test_messages_in_another_order() -> None:
    found = programs()
    first, other = (place(found[1], "receive-forward", m) for m in (2, 3))
    swap(found[1], first, other)
    sentence = refusal(found)
    assert "Stage 0 sends the activations of 'images' for micro-batch 2" in sentence
    assert "before the activations of 'images' for micro-batch 3" in sentence


def test_a_wait_cycle_is_spelled_out() -> None:
    # The last stage wants the second micro-batch before it returns the first; its neighbour wants
    # the first one's gradient before it sends the second.
    found = programs()
    middle, last = found[1], found[2]
    gradient = middle.pop(place(middle, "receive-backward", 0))
    middle.insert(place(middle, "send-forward", 1), gradient)
    second = last.pop(place(last, "receive-forward", 1))
    last.insert(place(last, "backward", 0), second)
    assert refusal(found) == (
        "Wait cycle: stage 1 waits in receive-backward of 0 ('language') from stage 2, stage 2 "
        "waits in receive-forward of 1 ('language') from stage 1, and so the first again."
    )


def test_a_backward_before_its_forward() -> None:
    found = programs()
    swap(found[2], place(found[2], "forward", 1), place(found[2], "backward", 1))
    assert refusal(found) == (
        "Wait cycle: stage 2 waits in backward of 1 for its own forward of 1, which comes after it."
    )


def test_gradients_of_weights_before_their_backward() -> None:
    graph = stage_graph({"language": []}, {"language": 2})
    found = [list(own) for own in plan_schedule(graph, 3, zero_bubble).all_actions()]
    swap(found[1], place(found[1], "backward", 2), place(found[1], "weight-gradient", 2))
    assert refusal(found) == (
        "Wait cycle: stage 1 waits in weight-gradient of 2 for its own backward of 2, which comes "
        "after it."
    )


def test_messages_that_hold_a_communicator() -> None:
    # Each edge has a communicator per direction. With one for both ways 1F1B waits indefinitely.
    one = {"communicator": lambda message: message[1]}
    found = refusal(programs(), blocking_sends=True, **one)
    assert "from stage 2 behind its send-forward of 1 ('language') to stage 2, stage 2" in found
    check_actions(programs(), blocking_sends=True)
    graph = stage_graph({"images": ["language"], "language": []}, {"images": 1, "language": 2})
    check_actions(plan_schedule(graph, 4, gpipe).all_actions(), blocking_sends=True, **one)


def upside_down(graph: StageGraph, worker: int, count: int) -> list[Step]:
    steps = list(gpipe(graph, worker, count))
    return steps if worker else [*reversed(steps[:count]), *steps[count:]]


def forgetful(graph: StageGraph, worker: int, count: int) -> list[Step]:
    """Leave out the gradients of weights of the last micro-batch."""
    return list(zero_bubble(graph, worker, count))[:-1]


def impatient(graph: StageGraph, worker: int, count: int) -> list[Step]:
    return list(reversed(gpipe(graph, worker, count)))


def patient(graph: StageGraph, worker: int, count: int) -> list[Step]:
    """Alternate at once on the first stage; all forwards first on the others."""
    steps = gpipe(graph, worker, count)
    return (
        list(steps) if worker else sorted(steps, key=lambda step: (step[2], step[0] != "forward"))
    )


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        (upside_down, "receives them the other way round"),
        (forgetful, "weight-gradient of micro-batch 2"),
        (impatient, "its own forward"),
        (patient, "Wait cycle: stage 0 waits in receive-backward of 0 .* from stage 1, stage 1"),
    ],
)
@pytest.mark.parametrize("stages", [2, 3])
def test_orders_of_ones_own_are_checked(order: Callable, sentence: str, stages: int) -> None:
    graph = stage_graph({"language": []}, {"language": stages})
    with pytest.raises(ScheduleError, match=sentence):
        plan_schedule(graph, 3, order)
