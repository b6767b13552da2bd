import doctest
import pickle

import pytest

import mimokit.planning.schedule
from mimokit.config.graph import find_cycle, topological_order
from mimokit.planning.schedule import (
    Action,
    Schedule,
    ScheduleError,
    gpipe,
    num_warmup_microbatches,
    plan_schedule,
    stage_graph,
    zero_bubble,
)
from tests.rows import rows

TWO_ENCODERS = stage_graph(
    {"short": ["language"], "long": ["language"], "language": []},
    {"short": 1, "long": 3, "language": 2},
)


def kinds(schedule: Schedule, stage: int) -> str:
    """Return the computations of a stage as letters: F and B with the micro-batch."""
    return " ".join(f"{kind[0].upper()}{m}" for kind, m in schedule.steps(stage))


def test_warmups_over_the_longest_path() -> None:
    # Trap T31: two encoders of 1 and 3 stages and a language module of 2.
    schedule = plan_schedule(TWO_ENCODERS, 16)
    assert TWO_ENCODERS.total_stages == 5
    found = {(s.module, s.place): schedule.warmup(s.index) for s in TWO_ENCODERS.stages}
    assert found == {
        ("short", 0): 4,
        ("long", 0): 4,
        ("long", 1): 3,
        ("long", 2): 2,
        ("language", 0): 1,
        ("language", 1): 0,
    }
    assert [schedule.in_flight(stage) for stage in range(6)] == [5, 5, 4, 3, 2, 1]
    assert num_warmup_microbatches(0, 5, 3) == 3


def test_a_module_behind_the_language_module() -> None:
    graph = stage_graph(
        {"images": ["language"], "language": ["generator", "probe"]},
        {"images": 1, "language": 2, "generator": 2, "probe": 1},
    )
    assert [(s.module, s.position) for s in graph.stages] == [
        ("images", 0),
        ("language", 1),
        ("language", 2),
        ("generator", 3),
        ("generator", 4),
        ("probe", 3),
    ]
    schedule = plan_schedule(graph, 4)
    assert schedule.warmup(graph.stage("probe", 0).index) == 1
    assert schedule.loading == {0, 4, 5}


def test_the_orders() -> None:
    chain = stage_graph({"language": []}, {"language": 3})
    assert kinds(plan_schedule(chain, 2, gpipe), 1) == "F0 F1 B0 B1"
    schedule = plan_schedule(chain, 4)
    assert kinds(schedule, 0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert kinds(schedule, 1) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert kinds(schedule, 2) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_weights_fill_the_time_in_which_stages_would_wait() -> None:
    # Figure 3 of arXiv 2401.10241, for three stages.
    chain = stage_graph({"language": []}, {"language": 3})
    schedule = plan_schedule(chain, 4, zero_bubble)
    assert kinds(schedule, 0) == "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3"
    assert kinds(schedule, 1) == "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3"
    assert kinds(schedule, 2) == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"


def test_a_frozen_module_has_no_gradients_of_weights() -> None:
    graph = stage_graph(
        {"images": ["text"], "text": ["language"], "language": []},
        {"images": 1, "text": 1, "language": 1},
    )
    schedule = plan_schedule(graph, 2, zero_bubble, frozen={"text"})
    images, text, language = (graph.stage(name, 0).index for name in ("images", "text", "language"))
    assert schedule.split == {images, language}
    assert "W" not in kinds(schedule, text)
    assert kinds(schedule, images) == "F0 F1 B0 W0 B1 W1"
    # What it needs for a gradient of its input is free after that.
    assert schedule.in_flight(text) == 2


def test_the_actions_of_a_stage() -> None:
    schedule = plan_schedule(TWO_ENCODERS, 1)
    first_of_language = TWO_ENCODERS.stage("language", 0).index
    assert [str(action) for action in schedule.actions(first_of_language)] == [
        "receive-forward of 0 ('short') from stage 0",
        "receive-forward of 0 ('long') from stage 3",
        "forward of 0",
        "send-forward of 0 ('language') to stage 5",
        "receive-backward of 0 ('language') from stage 5",
        "backward of 0",
        "send-backward of 0 ('short') to stage 0",
        "send-backward of 0 ('long') to stage 3",
        "grad-sync",
        "optimizer",
    ]
    assert schedule.actions(0)[0] == Action("load", 0, 0)
    assert schedule.actions(5)[0] == Action("load", 5, 0)


def test_a_frozen_encoder_has_no_backward() -> None:
    schedule = plan_schedule(TWO_ENCODERS, 8, frozen={"short"})
    assert kinds(schedule, 0) == "F0 F1 F2 F3 F4 F5 F6 F7"
    assert schedule.in_flight(0) == 1
    assert [a.kind for a in schedule.actions(0)[-2:]] == ["send-forward", "optimizer"]
    gradients = {a.peer for a in schedule.actions(4) if a.kind == "send-backward"}
    assert gradients == {3}


def test_a_frozen_module_passes_gradients_on() -> None:
    schedule = plan_schedule(TWO_ENCODERS, 2, frozen={"language", "short"})
    assert "B0" in kinds(schedule, 5)
    assert "B0" in kinds(schedule, 1)
    assert "B0" not in kinds(schedule, 0)
    assert [a.kind for a in schedule.actions(5)].count("grad-sync") == 0


def test_no_stage_waits_for_what_is_absent() -> None:
    schedule = plan_schedule(TWO_ENCODERS, 4, absent={("short", 1), ("long", 2), ("long", 1)})
    assert kinds(schedule, 0) == "F0 F2 F3 B0 B2 B3"
    received = {
        (a.modality, a.microbatch) for a in schedule.actions(4) if a.kind == "receive-forward"
    }
    assert received == {("short", 0), ("short", 2), ("short", 3), ("long", 0), ("long", 3)}
    assert schedule.in_flight(0) == 3


def test_schedules_travel() -> None:
    schedule = plan_schedule(TWO_ENCODERS, 1024, frozen={"short"})
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert len(pickle.dumps(schedule)) < 3000
    assert schedule != plan_schedule(TWO_ENCODERS, 1024)


@rows(
    "topology, sizes, sentence",
    ({"a": ["b"], "b": ["a"]}, {"a": 1, "b": 1}, "cycle: a -> b -> a"),
    ({"a": ["a"]}, {"a": 1}, "cycle: a -> a"),
    (
        {"a": ["b"], "b": ["c"], "c": ["d", "b"], "d": []},
        dict.fromkeys("abcd", 1),
        "cycle: b -> c -> b",
    ),
    ({"a": ["l"], "l": [], "b": []}, {"a": 1, "l": 1, "b": 1}, "'b' feeds no module"),
    ({"a": ["l"], "l": []}, {"a": 1}, "'l' needs a pipeline_parallel"),
    ({"a": ["l"], "l": []}, {"a": 0, "l": 1}, "'a' needs a pipeline_parallel"),
)
def test_graphs_that_are_refused(topology, sizes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        stage_graph(topology, sizes)


def test_cycles_and_orders_of_modules() -> None:
    assert find_cycle({"a": ["b"], "b": []}) == ()
    # Modules before and after a cycle are not part of it.
    cycle = find_cycle({"in": ["a"], "a": ["b"], "b": ["c"], "c": ["a", "out"], "out": []})
    assert cycle == ("a", "b", "c", "a")
    assert topological_order({"l": ["z"], "b": ["l"], "a": ["l"]}) == ("b", "a", "l", "z")


@rows(
    "steps, sentence",
    ([("forward", 0, 0)], "the backward of micro-batch 0, but it must do so once, not 0 times"),
    ([("forward", 0, 0), ("forward", 0, 0)], "backward of micro-batch 0"),
    ([("forward", 0, 0), ("backward", 0, 1)], "backward of micro-batch 1, but there is none"),
)
def test_orders_that_are_not_complete(steps, sentence: str) -> None:
    with pytest.raises(ScheduleError, match=sentence):
        plan_schedule(TWO_ENCODERS, 1, lambda *_: steps)


@rows(
    "options, sentence",
    ({"num_microbatches": 0}, "at least 1"),
    ({"num_microbatches": 2, "frozen": {"audio"}}, "'audio' is not one of"),
    ({"num_microbatches": 2, "absent": {("audio", 0)}}, "'audio' is not one of"),
    ({"num_microbatches": 2, "absent": {("long", 2)}}, "micro-batch 2"),
)
def test_options_that_are_wrong(options, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        plan_schedule(TWO_ENCODERS, **options)


def test_the_example_of_the_documentation_is_computed() -> None:
    found = doctest.testmod(mimokit.planning.schedule)
    assert found.attempted == 7
    assert found.failed == 0
