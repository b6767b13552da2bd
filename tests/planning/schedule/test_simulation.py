import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.planning.schedule import (
    gpipe,
    makespan,
    one_forward_one_backward,
    plan_schedule,
    simulate,
    stage_graph,
    zero_bubble,
)
from tests.planning.schedule.graphs import EventSimulation, stage_graphs
from tests.rows import rows

ORDERS = st.sampled_from([gpipe, one_forward_one_backward, zero_bubble])


def table(draw: st.DrawFn, places: int, count: int) -> list[list[float]]:
    row = st.lists(st.integers(0, 4).map(float), min_size=count, max_size=count)
    return draw(st.lists(row, min_size=places, max_size=places))


@settings(max_examples=80)
@given(graph=stage_graphs(), count=st.integers(1, 5), order=ORDERS, chooser=st.data())
def test_equals_a_simulation_event_by_event(graph, count, order, chooser) -> None:
    names = [name for name, _ in graph.topology]
    frozen = chooser.draw(st.sets(st.sampled_from(names)))
    away = st.tuples(st.sampled_from(names[:-1] or names), st.integers(0, count - 1))
    absent = chooser.draw(st.sets(away, max_size=4))
    schedule = plan_schedule(graph, count, order, frozen=frozen, absent=absent)
    stages, edges = len(graph.stages), len(graph.edges)
    times = [
        chooser.draw(st.composite(table)(places, count))
        for places in (stages, stages, edges, edges)
    ]
    apart = [[min(1.0, time) for time in of_stage] for of_stage in times[1]]
    slow = EventSimulation(schedule, *times, apart)
    # An empty table of edges still has its micro-batches.
    arrays = [np.array(t).reshape(len(t), count) for t in times]
    weights = np.array(apart)
    fast = simulate(schedule, *arrays, weight_gradient=weights)
    found = {
        interval.action: (interval.start, interval.stop)
        for stage in range(stages)
        for interval in fast.intervals(stage)
        if not interval.action.kind.startswith(("receive", "load", "grad", "opt"))
    }
    assert found == slow.done
    assert fast.pipeline_makespan == max((stop for _, stop in slow.done.values()), default=0)
    last_computed = [t[1] for a, t in slow.done.items() if a.edge is None]
    assert makespan(schedule, *arrays, weight_gradient=weights).shape == ()
    assert fast.makespan == max(last_computed, default=0)


@pytest.mark.parametrize("order", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 1), (4, 4), (3, 7), (8, 2), (64, 16)])
def test_the_bubble_of_equal_stages(p: int, m: int, order) -> None:
    timeline = simulate(plan_schedule(stage_graph({"language": []}, {"language": p}), m, order))
    assert timeline.bubble == ((p - 1) / (m + p - 1),) * p
    assert timeline.makespan == 3 * (m + p - 1)
    assert makespan(timeline.schedule) == timeline.makespan
    held = [min(m, p - stage) for stage in range(p)]
    assert list(timeline.in_flight) == (held if order is one_forward_one_backward else [m] * p)


@rows("p, m", (1, 1), (2, 2), (4, 4), (3, 7), (8, 16))
def test_a_zero_bubble_of_equal_stages(p: int, m: int) -> None:
    # Table 2 of arXiv 2401.10241: (p - 1) (T_F + T_B - T_W), in the memory of 1F1B's first stage.
    graph = stage_graph({"language": []}, {"language": p})
    timeline = simulate(plan_schedule(graph, m, zero_bubble))
    assert timeline.makespan == 3 * m + p - 1
    assert timeline.in_flight == (p,) * p


def test_gradients_of_weights_are_part_of_a_backward() -> None:
    schedule = plan_schedule(stage_graph({"language": []}, {"language": 2}), 2, zero_bubble)
    half = simulate(schedule, 0.1, 0.4)
    assert half.makespan == simulate(schedule, 0.1, 0.4, weight_gradient=0.2).makespan
    with pytest.raises(ValueError, match="weight_gradient is a part of backward, and longer"):
        simulate(schedule, 1, 2, weight_gradient=3)


def test_what_comes_after_the_pipeline() -> None:
    schedule = plan_schedule(stage_graph({"language": []}, {"language": 2}), 2)
    timeline = simulate(schedule, grad_sync=[5, 1], optimizer=0.5)
    # The last stage ends at 7, the first at 9.
    assert timeline.pipeline_makespan == 9
    assert timeline.makespan == 14.5
    *_, sync, step = timeline.intervals(1)
    assert (sync.action.kind, sync.start, sync.stop) == ("grad-sync", 7, 8)
    assert (step.action.kind, step.start, step.stop) == ("optimizer", 14, 14.5)


def test_many_sets_of_times_at_once() -> None:
    graph = stage_graph({"a": ["l"], "b": ["l"], "l": []}, {"a": 1, "b": 3, "l": 2})
    schedule = plan_schedule(graph, 4)
    forward = np.arange(1.0, 43.0).reshape(7, 6, 1)
    found = makespan(schedule, forward, 2 * forward, transfer=np.array([[[0.5]]]))
    assert found.shape == (7,)
    one_by_one = [simulate(schedule, f[:, 0], 2 * f[:, 0], 0.5).makespan for f in forward]
    assert found.tolist() == one_by_one


@rows(
    "times, message",
    ({"forward": -1}, "forward must be finite times"),
    ({"backward": float("nan")}, "backward must be finite times"),
    ({"forward": [1, 2, 3]}, r"forward is of shape \(3,\); give one number, 2 numbers"),
    ({"transfer": np.zeros((1, 5))}, r"\[\.\.\., 1, 4\]"),
    ({"forward": np.ones((2, 2, 1))}, "makespan takes many"),
)
def test_times_that_are_none(times, message: str) -> None:
    schedule = plan_schedule(stage_graph({"language": []}, {"language": 2}), 4)
    with pytest.raises(ValueError, match=message):
        simulate(schedule, **times)
