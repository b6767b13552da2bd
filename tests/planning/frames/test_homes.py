"""Frames that stay where they are as far as they can."""

import numpy as np
import pytest

from mimokit.planning.frames import lpt_balance, plan_frames
from tests.planning.frames.batches import images, mixed, videos
from tests.rows import rows


def in_blocks(frames: int, ranks: int) -> np.ndarray:
    """Return the homes of frames that ranks hold one after the other."""
    return np.repeat(np.arange(ranks), frames // ranks)


@rows("batch", images, mixed, videos)
def test_little_moves_at_a_good_balance(batch) -> None:
    loads, home = batch(1024), in_blocks(1024, 64)
    excess = np.bincount(home, weights=loads) - loads.sum() / 64
    assert excess.max() > 0.2 * loads.sum() / 64, "there is something to balance"
    plan = plan_frames(loads, 64, home=home)
    assert plan.imbalance <= 1.01
    assert plan.makespan <= max(lpt_balance(loads, 64)[1])
    assert plan.moved <= 0.25
    less = plan_frames(loads, 64, home=home, tolerance=0.01)
    assert less.moved <= plan.moved
    # No plan can move less than what ranks have above the goal.
    assert less.moved <= 2 * excess.clip(0).sum() / loads.sum()


def test_what_is_balanced_stays() -> None:
    home = [3, 1, 0, 2]
    plan = plan_frames([5, 5, 5, 5], 4, home=home)
    assert list(plan.assignment) == home
    assert plan.moved == 0


def test_frames_rather_move_within_a_node() -> None:
    loads, home = images(1024), in_blocks(1024, 64)
    across = {}
    for node in (8, 64):
        plan = plan_frames(loads, 64, home=home, ranks_per_node=node)
        assert plan.imbalance <= 1.01
        between = plan.traffic().reshape(8, 8, 8, 8).sum(axis=(1, 3))
        across[node] = between.sum() - np.trace(between)
    assert 0 < across[8] < 0.7 * across[64]


def test_traffic_says_what_travels_between_which_ranks() -> None:
    plan = plan_frames([4, 4, 4, 4], 2, home=[0, 0, 0, 1])
    assert plan.traffic().tolist() == [[8, 4], [0, 4]]
    assert plan.traffic([1, 1, 1, 9]).tolist() == [[2, 1], [0, 9]]
    assert plan.moved == 0.25
    with pytest.raises(ValueError, match="no home ranks; plan with home="):
        plan_frames([1], 1).traffic()


@rows(
    "options, sentence",
    ({"home": [0, 5]}, "The home of frame 1 is rank 5; the ranks are 0 to 1"),
    ({"home": [0]}, "The home of 2 frames has shape \\(1,\\)"),
    ({"home": [0, 1], "tolerance": -1}, "tolerance is -1; it is a share: at least 0"),
    ({"home": [0, 1], "tolerance": float("nan")}, "tolerance is nan"),
    ({"home": [0, 1], "ranks_per_node": 0}, "ranks_per_node is 0"),
)
def test_what_is_no_home_and_no_share(options: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        plan_frames([1, 2], 2, **options)
