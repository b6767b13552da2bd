"""The clock of a step, what crosses at its ticks, and what is found to differ."""

from dataclasses import replace

import mimokit
from mimokit.planning.stepper import (
    Crossing,
    SeenCrossing,
    clock_of,
    differences,
    planned_crossings,
)
from tests.layouts import digits_config
from tests.layouts_apart import apart_config
from tests.layouts_pipelines import shared_pipeline
from tests.rows import rows
from tests.whole_runs import AROUND

APART = [
    ((1, 1, 4), (2, 1, 2), 2),
    ((2, 1, 1), (1, 2, 2), 4),
    ((1, 2, 2), (2, 1, 1), 3),
    ((1, 2, 1), (1, 3, 1), 5),
]


def _plans():
    yield mimokit.plan(digits_config((1, 8), (4, 2), 2))
    yield mimokit.plan(digits_config((4, 2), (1, 8)))
    for encoder, language, microbatches in APART:
        yield mimokit.plan(apart_config(encoder, language, microbatches))
    for mode, passes in (("homogeneous", None), ("colocated", None), ("colocated", 2)):
        yield mimokit.plan(shared_pipeline(mode, (2, 2, 2), AROUND, 3, encoder_microbatches=passes))


PLANS = list(_plans())


@rows("plan", *[p for p in PLANS if p.pipeline is not None])
def test_every_rank_does_its_planned_actions_in_order(plan):
    done = {rank: [] for rank in range(plan.world_size)}
    for tick in clock_of(plan):
        for rank, step in tick.steps.items():
            if step.action is not None:
                done[rank].append(step.action)
    for rank, actions in done.items():
        planned = [a for a in plan.program.actions(rank) if a.microbatch is not None]
        assert actions == planned


@rows("plan", *PLANS)
def test_nothing_is_received_before_it_is_sent(plan):
    sent, received = set(), set()
    for tick in clock_of(plan):
        crossings = planned_crossings(plan, tick)
        sent |= {crossing for crossing, is_sent in crossings if is_sent}
        taken = {crossing for crossing, is_sent in crossings if not is_sent}
        assert taken <= sent
        assert not taken & received
        received |= taken
    assert received == sent
    assert received


@rows("plan", *PLANS)
def test_time_does_not_go_back_and_everybody_ends_together(plan):
    clock = clock_of(plan)
    assert [tick.time for tick in clock] == sorted(tick.time for tick in clock)
    assert [step.name for tick in clock[-3:] for step in set(tick.steps.values())] == [
        "grad-sync",
        "optimizer",
        "report",
    ]
    for tick in clock[-3:]:
        assert set(tick.steps) == set(range(plan.world_size))


def test_ranks_of_a_stage_act_at_the_same_ticks():
    plan = mimokit.plan(apart_config((2, 1, 1), (1, 2, 2), 4))
    for tick in clock_of(plan):
        for ranks in plan.pipeline.ranks:
            assert len({tick.steps.get(rank) for rank in ranks}) == 1


def test_a_gather_brings_every_rank_the_samples_of_its_language_replica():
    plan = mimokit.plan(digits_config((1, 8), (4, 2)))
    (gather,) = [t for t in clock_of(plan) if t.steps[0].name == "gather"]
    taken = [c for c, sent in planned_crossings(plan, gather) if not sent]
    for rank in range(8):
        samples = sorted(c.start for c in taken if c.destination_rank == rank)
        assert samples == ([0, 1, 2, 3] if rank < 4 else [4, 5, 6, 7])
    # The gradient is cut: every rank keeps its own sample.
    (scatter,) = [t for t in clock_of(plan) if t.steps[0].name == "scatter"]
    kept = [c for c, sent in planned_crossings(plan, scatter) if not sent]
    assert [(c.source_rank, c.destination_rank, c.start) for c in kept] == [
        (rank, rank, rank) for rank in range(8)
    ]


CROSSING = Crossing("images", "language_module", False, 0, 1, 4, 2, 4)
SENT = SeenCrossing(CROSSING, True, (8, 64), 2048, ("a", "b"), ("a", "b"))
TAKEN = SeenCrossing(CROSSING, False, (8, 64), 2048, ("a", "b"))
PLANNED = ((CROSSING, True), (CROSSING, False))


def test_what_crosses_as_planned_is_no_difference():
    assert differences(PLANNED, (SENT, TAKEN), {CROSSING: SENT}) == ()


ELSEWHERE = replace(CROSSING, destination_rank=5)


@rows(
    "pieces, told",
    ((SENT,), "planned to cross, but it was not received"),
    ((SENT, TAKEN, replace(SENT, crossing=ELSEWHERE)), "rank 5: planned nothing"),
    ((SENT, SENT, TAKEN), "planned once, but it was sent twice"),
    ((SENT, replace(TAKEN, shape=(4, 64))), "the shape [8, 64] that was sent, but [4, 64]"),
    ((SENT, replace(TAKEN, prints=("a", "c"))), "what rank 1 gave for sample 3"),
    ((replace(SENT, held=("b", "a")), TAKEN), "what rank 1 has for samples 2, 3"),
)
def test_every_planted_difference_is_found(pieces, told):
    (difference,) = differences(PLANNED, pieces, {CROSSING: SENT})
    assert told in str(difference)
    assert "samples 2 to 3 of micro-batch 0" in str(difference)
