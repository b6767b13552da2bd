"""Which rank gets which frame: against the slowest planners, and against proofs of the optimum."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mimokit.planning.frames import FramePlan, lpt_balance, partition, placement_loops, plan_frames
from tests.planning.frames.batches import (
    FEW_SIZES,
    HARD_SIZES,
    fewest_ranks,
    images,
    mixed,
    optimum,
    planted,
    videos,
)
from tests.rows import rows

loads_lists = st.lists(st.integers(0, 40), max_size=40)
some_ranks = st.integers(1, 9)


def slow_lpt(loads: list[float], ranks: int) -> tuple[list[int], list[float]]:
    """Return what the reference planner does, as plainly as it can be written."""
    assignment, totals = [0] * len(loads), [0.0] * ranks
    for frame in sorted(range(len(loads)), key=lambda frame: (-loads[frame], frame)):
        assignment[frame] = totals.index(min(totals))
        totals[assignment[frame]] += loads[frame]
    return assignment, totals


@given(loads_lists, some_ranks)
def test_lpt_is_the_reference(loads: list[int], ranks: int) -> None:
    assignment, totals = lpt_balance(loads, ranks)
    assert (assignment, totals) == slow_lpt(loads, ranks)
    assert all(type(total) is int for total in totals)


@rows("scale", 1, 0.37)
def test_lpt_is_the_reference_when_compiled(scale: float) -> None:
    loads = videos(700) * scale
    assert lpt_balance(loads, 32) == slow_lpt(loads.tolist(), 32)


def check(plan: FramePlan, loads: np.ndarray, ranks: int) -> None:
    """Every frame is on one rank, and the sums are theirs."""
    sums = np.bincount(np.array(plan.assignment, dtype=int), weights=loads, minlength=ranks)
    np.testing.assert_allclose(plan.load_per_rank, sums, rtol=1e-12)
    assert len(plan.assignment) == len(loads)
    assert len(plan.load_per_rank) == ranks


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(1, 3))
@settings(max_examples=60)
def test_few_frames_are_at_most_3_percent_above_the_optimum(loads: list[int], ranks: int) -> None:
    plan = plan_frames(loads, ranks)
    check(plan, np.array(loads, dtype=float), ranks)
    assert plan.makespan <= 1.03 * optimum(loads, ranks)


@pytest.mark.parametrize("sizes", [*FEW_SIZES, HARD_SIZES])
@pytest.mark.parametrize(("frames", "ranks"), [(20, 8), (40, 12), (64, 24)])
def test_no_plan_of_up_to_64_frames_is_3_percent_better(sizes, frames: int, ranks: int) -> None:
    """The same proof for few frames; a makespan is at least that of the largest frame."""
    loads = videos(frames, 2, sizes)
    makespan = plan_frames(loads, ranks).makespan
    lower = makespan / 1.03
    assert lower < loads.max() or fewest_ranks(loads, lower) > ranks + 1e-6


@example([35268.0, 3831.0, 837.0, 38696.0, 2.2e-313], 2, {})  # room for infinitely many of one
@given(
    st.lists(st.floats(0, 1e6), max_size=60),
    some_ranks,
    st.sampled_from([{}, {"home": True}, {"home": True, "ranks_per_node": 2}]),
)
def test_no_plan_is_worse_than_lpt(loads: list[float], ranks: int, options: dict) -> None:
    if "home" in options:
        options = {**options, "home": [frame % ranks for frame in range(len(loads))]}
    plan = plan_frames(loads, ranks, **options)
    check(plan, np.array(loads), ranks)
    assert plan.makespan <= max(lpt_balance(loads, ranks)[1]) * (1 + 1e-12)


@pytest.mark.parametrize("batch", [images, mixed])
@pytest.mark.parametrize(("frames", "ranks"), [(128, 8), (1024, 64)])
def test_images_and_mixed_batches_are_balanced(batch, frames: int, ranks: int) -> None:
    plan = plan_frames(batch(frames), ranks)
    assert plan.imbalance <= 1.001
    assert plan.makespan <= max(lpt_balance(batch(frames), ranks)[1])


@rows("sizes, seed", *((s, 0) for s in FEW_SIZES), (HARD_SIZES, 1))
def test_no_plan_of_few_sizes_is_better(sizes: tuple[int, ...], seed: int) -> None:
    """A linear program over all contents of a rank needs more ranks for any lower makespan."""
    loads = np.random.default_rng(seed).choice(sizes, 1024)
    plan = plan_frames(loads, 256)
    assert plan.makespan < max(lpt_balance(loads, 256)[1])
    assert fewest_ranks(loads, plan.makespan - 1) > 256 + 1e-6


def test_the_loops_do_the_same_interpreted_and_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [(mixed(96), 16), (videos(64), 16), (planted(10, 30, 1000, 3), 10)]
    options = [{}, {"home": True}]

    def plans() -> list[FramePlan]:
        return [
            plan_frames(
                loads, ranks, **({**more, "home": np.arange(len(loads)) % ranks} if more else {})
            )
            for loads, ranks in cases
            for more in options
        ]

    monkeypatch.setattr(partition, "KICKS", partition.KICKS_INTERPRETED)
    monkeypatch.setattr(partition, "MOST_TOGETHER", partition.MOST_INTERPRETED)
    interpreted = plans()
    monkeypatch.setattr(partition, "INTERPRETED", 0)
    assert plans() == interpreted


def test_loops_compile_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba finds no folder for what it compiles."""
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    compiled = partition._compiled.__wrapped__(placement_loops.link)
    first, following = np.zeros(2, dtype=np.int64), np.zeros(3, dtype=np.int64)
    compiled(np.array([0, 1, 0]), first, following)
    assert (first.tolist(), following.tolist()) == ([0, 1], [2, -1, -1])


@rows(
    "loads, ranks, totals",
    ([], 3, (0, 0, 0)),
    ([5], 3, (5, 0, 0)),
    ([0, 0, 0], 2, (0, 0)),
    ([2] * 7, 3, (6, 4, 4)),
    ([9, 0, 1, 0], 2, (9, 1)),
)
def test_few_empty_and_equal_frames(loads: list[int], ranks: int, totals: tuple[int, ...]) -> None:
    assert plan_frames(loads, ranks).load_per_rank == totals
    assert tuple(lpt_balance(loads, ranks)[1]) == totals


@pytest.mark.parametrize("function", [lpt_balance, plan_frames])
@pytest.mark.parametrize(
    ("loads", "ranks", "sentence"),
    [
        ([1, -2], 2, "Frame 1 has a load of -2; a load is finite and >= 0"),
        ([float("nan")], 2, "Frame 0 has a load of nan"),
        ([1, 2, float("inf")], 2, "Frame 2 has a load of inf"),
        ([[1, 2]], 2, "have 2 dimensions; give one number for each frame"),
        (["many"], 2, "are \\['many'\\]; give one number for each frame"),
        ([1], 0, "num_ranks is 0; frames need at least 1 rank"),
        ([1], -3, "num_ranks is -3"),
        ([1], 1.5, "num_ranks is 1.5"),
        ([1], True, "num_ranks is True"),
    ],
)
def test_what_is_no_load_and_no_rank(function, loads: list, ranks: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        function(loads, ranks)


@rows(
    "assignment, sentence",
    ([0, 1], "The assignment of 3 frames has shape \\(2,\\); give one rank for each frame"),
    ([0, 2, 1], "The assignment of frame 1 is rank 2; the ranks are 0 to 1"),
    ([0, -1, 1], "The assignment of frame 1 is rank -1"),
    ([0.5, 0, 1], "give whole numbers of ranks"),
)
def test_an_assignment_gives_every_frame_one_rank(assignment: list, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        FramePlan.of(assignment, [3, 2, 1], 2)
    assert FramePlan.of([0, 1, 1], [3, 2, 1], 2).load_per_rank == (3, 3)
