"""What a frame costs an encoder."""

import numpy as np
import pytest

from benchmarks.frame_cost import fit_cost
from mimokit.planning.frames import FrameCost
from tests.rows import rows


def test_a_cost_is_found_from_measured_calls() -> None:
    random = np.random.default_rng(1)
    true = FrameCost(3e-6, 4e-9)
    calls = [random.integers(16, 2000, random.integers(1, 9)).tolist() for _ in range(40)]
    times = [true.loads(call).sum() * random.normal(1, 0.01) + 5e-4 for call in calls]
    found = fit_cost(calls, times)
    for patches in (64, 256, 1024, 4096):
        assert found.loads([patches]) == pytest.approx(true.loads([patches]), rel=0.1)


def test_a_frame_of_twice_the_patches_costs_more_than_two_frames() -> None:
    cost = FrameCost(1.0, 0.01)
    assert cost.loads([100, 200]).tolist() == [200, 600]


@rows(
    "frames, seconds, sentence",
    ([[4], [8]], [1.0], "2 calls but 1 times"),
    ([[4], [4]], [1.0, 1.1], "all the same frames"),
    ([], [], "all the same frames"),
    ([[4], [8]], [1.0, 0.0], "each must be above 0"),
    ([[4], [400]], [1.0, 0.5], "do not rise with the frames"),
)
def test_measurements_that_say_nothing(frames: list, seconds: list, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fit_cost(frames, seconds)


@rows("cost", (-1.0, 0.0), (float("nan"), 1.0), (0.0, 0.0))
def test_what_is_no_cost(cost: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="frame's cost is"):
        FrameCost(*cost)
