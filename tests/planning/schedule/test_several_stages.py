"""Orders of ranks that work on several stages: shared ranks, and interleaved pipelines."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mimokit
from mimokit.config.sizes import ParallelSizes
from mimokit.planning.schedule import (
    Schedule,
    SharedOrder,
    StageGraph,
    check_actions,
    gpipe,
    held_stages,
    interleaved,
    makespan,
    one_forward_one_backward,
    plan_schedule,
    shared_graph,
    simulate,
    stage_graph,
)
from mimokit.prediction.memory import micro_batches_in_flight, micro_batches_through
from tests.layouts import digits_config
from tests.rows import rows

LANGUAGE = "language"


def of_a_microbatch(encoders: list[str], trained: set[str], number: int) -> list[tuple]:
    """Return the steps of a loop over modules on shared ranks, those of backward in reverse."""
    steps: list[tuple] = [("load", None, number), ("slice", None, number)]
    for name in encoders:
        steps += [("forward", name, number), ("gather", name, number)]
    steps += [("forward", LANGUAGE, number), ("loss", LANGUAGE, number)]
    if trained:
        steps.append(("backward", LANGUAGE, number))
    for name in reversed(encoders):
        if name in trained:
            steps += [("scatter", name, number), ("backward", name, number)]
    return steps


@settings(max_examples=50)
@given(encoders=st.permutations(["b", "a", "c"]), count=st.integers(1, 4), chooser=st.data())
def test_shared_ranks_do_what_a_loop_does(encoders, count: int, chooser) -> None:
    encoders = encoders[: chooser.draw(st.integers(0, 3))]
    frozen = chooser.draw(st.sets(st.sampled_from([*encoders, LANGUAGE])))
    topology = {**dict.fromkeys(encoders, (LANGUAGE,)), LANGUAGE: ()}
    graph = shared_graph(topology, [*encoders, LANGUAGE])
    schedule = plan_schedule(graph, count, SharedOrder(), frozen=frozen, loading=())
    found = [
        (a.kind, None if a.stage is None else graph.stages[a.stage].module, a.microbatch)
        for a in schedule.actions(0)
        if a.microbatch is not None
    ]
    trained = {*encoders, LANGUAGE} - frozen
    assert found == [
        step for number in range(count) for step in of_a_microbatch(encoders, trained, number)
    ]


def test_a_bridge_is_an_action_on_the_edge_of_the_encoder() -> None:
    program = mimokit.plan(digits_config((1, 8), (4, 2), 2)).program
    bridges = [a for a in program.actions(3) if a.kind in ("gather", "scatter")]
    assert [(a.kind, a.stage, a.edge, a.peer, a.modality) for a in bridges] == [
        ("gather", 0, 0, 1, "images"), ("scatter", 0, 0, 1, "images")
    ] * 2  # fmt: skip
    assert [str(action) for action in bridges[:2]] == [
        "gather of 0 ('images') to stage 1",
        "scatter of 0 ('images') from stage 1",
    ]
    assert [stage.module for stage in program.stages_of(3)] == ["images", "language_module"]


def chunked(stages: int, chunks: int, **encoders: int) -> StageGraph:
    topology = {**dict.fromkeys(encoders, (LANGUAGE,)), LANGUAGE: ()}
    return stage_graph(topology, {**encoders, LANGUAGE: stages}, {LANGUAGE: chunks})


def test_a_rank_holds_every_so_many_stages_of_its_module() -> None:
    graph = chunked(2, 3, images=1)
    assert graph.workers == ((0,), (1, 3, 5), (2, 4, 6))
    assert graph.worker_of == (0, 1, 2, 1, 2, 1, 2)
    schedule = plan_schedule(graph, 2, interleaved)
    first = [str(action) for action in schedule.actions(1)[:6]]
    assert first == [
        "receive-forward of 0 ('images') from stage 0",
        "forward of 0",
        "send-forward of 0 ('language') to stage 2",
        "receive-forward of 1 ('images') from stage 0",
        "forward of 1",
        "send-forward of 1 ('language') to stage 2",
    ]
    sent = [a for worker in (1, 2) for a in schedule.actions(worker) if a.kind == "send-forward"]
    assert {a.edge for a in sent} == set(range(1, 6)), "every stage has an edge of its own"


def most_held(schedule: Schedule, worker: int) -> int:
    """Return the most forwards of a set of ranks whose backward has not come."""
    kinds = [kind for kind, *_ in schedule.ordered(worker)]
    return max(itertools.accumulate(1 if kind == "forward" else -1 for kind in kinds))


def as_megatron(stages: int, chunks: int, place: int, count: int) -> list[tuple]:
    """Return the order of a rank of one module, from the formulas of arXiv 2104.04473, 2.2."""

    def step(kind: str, number: int) -> tuple:
        turn, within = divmod(number, stages * chunks)
        chunk, offset = divmod(within, stages)
        chunk = chunks - 1 - chunk if kind == "backward" else chunk
        return kind, chunk * stages + place, turn * stages + offset

    whole = count * chunks
    warmup = min(whole, 2 * (stages - 1 - place) + (chunks - 1) * stages)
    steps = [step("forward", number) for number in range(warmup)]
    for number in range(whole - warmup):
        steps += [step("forward", warmup + number), step("backward", number)]
    return steps + [step("backward", number) for number in range(whole - warmup, whole)]


@rows("stages, chunks, rounds", *itertools.product([2, 3, 4, 6, 7], [2, 3], [1, 3]))
def test_the_order_of_one_module_is_as_long_as_megatrons(
    stages: int, chunks: int, rounds: int
) -> None:
    count, graph = stages * rounds, chunked(stages, chunks)
    own = plan_schedule(graph, count, interleaved)
    theirs = plan_schedule(graph, count, lambda _, place, n: as_megatron(stages, chunks, place, n))
    times = 1 / chunks, 2 / chunks
    assert makespan(own, *times) == pytest.approx(float(makespan(theirs, *times)))
    for worker in range(stages):
        assert most_held(own, worker) == most_held(theirs, worker)
        if stages < 5:
            assert own.ordered(worker) == theirs.ordered(worker)


@settings(max_examples=60, deadline=None)
@given(
    encoders=st.dictionaries(
        st.sampled_from(["a", "b"]), st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1
    ),
    language=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    count=st.integers(1, 9),
)
def test_predicted_memory_holds_what_chunks_hold(encoders, language, count: int) -> None:
    sizes = {name: size for name, (size, _) in encoders.items()} | {LANGUAGE: language[0]}
    several = {name: n if sizes[name] > 1 else 1 for name, (_, n) in encoders.items()}
    several[LANGUAGE] = language[1] if language[0] > 1 else 1
    topology = {**dict.fromkeys(encoders, (LANGUAGE,)), LANGUAGE: ()}
    graph = stage_graph(topology, sizes, several)
    schedule = plan_schedule(graph, count, interleaved)
    parallel = {n: ParallelSizes(pipeline=sizes[n], virtual=several[n]) for n in topology}
    through = {n: micro_batches_through(parallel[n], count) for n in topology}
    for worker, stages in enumerate(graph.workers):
        stage = graph.stages[stages[0]]
        held = most_held(schedule, worker) / len(stages)
        if stage.module == LANGUAGE:
            assert held <= micro_batches_in_flight(parallel[LANGUAGE], count, stage.place)
        else:
            assert held <= through[LANGUAGE] + max(through[name] for name in encoders)


@rows("stages, chunks, rounds", (2, 2, 1), (4, 3, 2), (8, 2, 3))
def test_interleaving_divides_the_bubble(stages: int, chunks: int, rounds: int) -> None:
    """(p - 1) (f + b) / v, arXiv 2104.04473, section 2.2."""
    count = stages * rounds
    schedule = plan_schedule(chunked(stages, chunks), count, interleaved)
    timeline = simulate(schedule, 1 / chunks, 2 / chunks)
    assert timeline.makespan == pytest.approx(3 * count + (stages - 1) * 3 / chunks)


@settings(max_examples=60, deadline=None)
@given(
    stages=st.integers(2, 5),
    chunks=st.integers(2, 4),
    rounds=st.integers(1, 3),
    encoders=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 3)),
    decoders=st.dictionaries(st.sampled_from(["x", "y"]), st.integers(1, 4)),
    chooser=st.data(),
)
def test_chunks_of_any_modules_never_wait_for_each_other(
    stages: int,
    chunks: int,
    rounds: int,
    encoders: dict[str, int],
    decoders: dict[str, int],
    chooser: st.DataObject,
) -> None:
    topology = {
        **dict.fromkeys(encoders, (LANGUAGE,)),
        LANGUAGE: tuple(decoders),
        **dict.fromkeys(decoders, ()),
    }
    sizes = {**encoders, LANGUAGE: stages, **decoders}
    others = {name: chooser.draw(st.integers(1, 3)) for name in topology if sizes[name] > 1}
    graph = stage_graph(topology, sizes, {**others, LANGUAGE: chunks})
    schedule = plan_schedule(graph, stages * rounds, interleaved)
    for blocking in (False, True):
        check_actions(schedule.all_actions(), blocking_sends=blocking)
    timeline = simulate(schedule)
    assert timeline.pipeline_makespan >= 3 * chunks * stages * rounds
    for worker, most in enumerate(held_stages(graph)):
        assert most_held(schedule, worker) <= most


@settings(max_examples=60, deadline=None)
@given(
    sets=st.sampled_from([2, 3, 4]),
    chunks=st.sampled_from([1, 2, 3]),
    count=st.integers(1, 9),
    passes=st.integers(1, 9),
    encoders=st.integers(1, 2),
    line=st.sampled_from(["1f1b", "gpipe"]),
    inside=st.booleans(),
    in_stages=st.integers(0, 2),
    of_encoders=st.integers(1, 3),
)
def test_encoders_beside_a_pipeline(
    sets: int,
    chunks: int,
    count: int,
    passes: int,
    encoders: int,
    line: str,
    inside: bool,
    in_stages: int,
    of_encoders: int,
) -> None:
    """Every module computes each micro-batch once, in the order that data takes, on any ranks."""
    names = [f"e{number}" for number in range(encoders)]
    topology = {**dict.fromkeys(names, (LANGUAGE,)), LANGUAGE: ()}
    shares = 1 if inside else sets
    staged = [] if inside else names[:in_stages]
    cut = {LANGUAGE: chunks, **dict.fromkeys(staged, of_encoders)}
    graph = shared_graph(topology, [*names, LANGUAGE], sets, cut, shares, staged)
    order = interleaved if chunks > 1 else one_forward_one_backward
    shared = SharedOrder(gpipe if line == "gpipe" else order, passes, inside)
    schedule = plan_schedule(graph, count, shared, loading=())
    for blocking in (False, True):
        check_actions(schedule.all_actions(), blocking_sends=blocking)
    assert len(graph.feeding) == (encoders - len(staged)) * shares
    assert len(graph.beside) == len(staged) * sets * of_encoders + len(graph.feeding)
    assert len({len(worker) for worker in graph.workers}) == 1 or inside
    for name in (*staged, LANGUAGE):
        stages = [graph.worker_of[s.index] for s in graph.stages if s.module == name]
        assert stages == [number % sets for number in range(sets * cut[name])]
    held = passes
    if inside:
        held = count if line == "gpipe" else 2 * sets * chunks
    for encoder in graph.beside:
        assert schedule.in_flight(encoder) <= min(count, held)
    first = next(stage.index for stage in graph.stages if stage.module == LANGUAGE)
    for encoder in graph.feeding:
        steps = schedule.ordered(graph.worker_of[encoder])
        for number in range(count):
            forward, gather, scatter, backward = (
                steps.index((kind, encoder, number))
                for kind in ("forward", "gather", "scatter", "backward")
            )
            assert forward < gather < scatter < backward
            if graph.worker_of[encoder] == 0:
                assert gather < steps.index(("forward", first, number))
                assert steps.index(("backward", first, number)) < scatter
    simulate(schedule)


@rows("sets, chunks, count", (2, 1, 3), (2, 2, 3), (3, 2, 4), (4, 3, 8))
def test_chunks_divide_the_time_in_which_encoders_beside_a_pipeline_wait(
    sets: int, chunks: int, count: int
) -> None:
    """Before it and after it all ranks wait (p - 1) times as long as one chunk takes."""
    topology = {"images": (LANGUAGE,), LANGUAGE: ()}
    names, cut = ["images", LANGUAGE], {"images": chunks}
    graph = shared_graph(topology, names, sets, cut, sets, ["images"])
    schedule = plan_schedule(graph, count, SharedOrder(passes=count), loading=())
    encoder = [1 / chunks if stage.module == "images" else 0 for stage in graph.stages]
    timeline = simulate(schedule, encoder, [2 * seconds for seconds in encoder])
    assert timeline.makespan == pytest.approx(3 * count + (sets - 1) * 3 / chunks)
