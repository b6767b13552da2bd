"""What frame parallel is going to save."""

import pytest

from mimokit.planning.frames import FrameCost, FrameLinks, forecast_frames
from tests.rows import rows

FAST = FrameLinks(bytes_per_second=1e9, latency=1e-5, input_bytes=100, output_bytes=200)
MILLISECOND_PER_PATCH = FrameCost(1e-3)


def test_uneven_frames_are_worth_it() -> None:
    found = forecast_frames([[10] * 6, [10] * 2], MILLISECOND_PER_PATCH, FAST)
    assert found.before == pytest.approx((0.06, 0.02))
    assert found.after == pytest.approx((0.04, 0.04))
    assert found.patches_between.tolist() == [[40, 20], [0, 20]]
    # 20 patches there, back, and the gradient; metadata and three all-to-alls.
    assert found.traffic_bytes == 20 * 500
    assert found.traffic_seconds == pytest.approx(4e-5 + 1e-5)
    assert found.saving == pytest.approx(0.02 - 5e-5)
    assert str(found) == (
        "Frame parallel saves 20 ms: the slowest encoder takes 40 ms instead of 60 ms, and 10 kB "
        "travel in 0.05 ms."
    )


def test_even_frames_are_not_worth_it() -> None:
    found = forecast_frames([[10] * 4] * 3, MILLISECOND_PER_PATCH, FAST)
    assert found.saving == -FAST.latency
    assert str(found) == (
        "Frame parallel is not worth it: the slowest encoder takes only 1.00 times the mean, and "
        "0 B travel in 0.01 ms."
    )


def test_slow_links_are_not_worth_it() -> None:
    slow = FrameLinks(bytes_per_second=1e5, latency=1e-4, input_bytes=100, output_bytes=200)
    found = forecast_frames([[10] * 6, [10] * 2], MILLISECOND_PER_PATCH, slow)
    assert not found.worth_it
    assert str(found) == (
        "Frame parallel is not worth it: the slowest encoder would take 40 ms instead of 60 ms, "
        "and 10 kB travel in 100 ms."
    )


def test_a_frozen_encoder_has_no_gradients_to_send() -> None:
    frozen = FrameLinks(1e9, 1e-5, input_bytes=100, output_bytes=200, trained=False)
    found = forecast_frames([[10] * 6, [10] * 2], MILLISECOND_PER_PATCH, frozen)
    assert found.traffic_bytes == 20 * 300


@rows(
    "patches, links, sentence",
    ([], (1e9, 0, 0, 0), "num_ranks is 0"),
    ([[1, -1]], (1e9, 0, 0, 0), "Frame 1 has a load of -0.001"),
    ([[1]], (0, 0, 0, 0), "bytes_per_second is 0; it is above 0"),
    ([[1]], (float("nan"), 0, 0, 0), "bytes_per_second is nan"),
    ([[1]], (1, -1, 0, 0), "latency is -1; it is at least 0"),
)
def test_what_cannot_be_forecast(patches: list, links: tuple, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        forecast_frames(patches, MILLISECOND_PER_PATCH, FrameLinks(*links))


def test_planners_and_what_every_rank_has_anyway() -> None:
    read = [[10] * 6, [10] * 2]
    none = forecast_frames(read, MILLISECOND_PER_PATCH, FAST, base=0.01, planner="none")
    assert none.after == none.before == pytest.approx((0.07, 0.03))
    assert str(none) == (
        "Every rank encodes what it reads: the slowest encoder takes 70 ms, 1.40 times the mean."
    )
    lpt = forecast_frames(read, MILLISECOND_PER_PATCH, FAST, planner="lpt")
    ours = forecast_frames(read, MILLISECOND_PER_PATCH, FAST, planner="plan_frames")
    assert lpt.after == pytest.approx(ours.after)
    assert lpt.traffic_bytes > ours.traffic_bytes
    with pytest.raises(ValueError, match="planner is 'magic'; it is one of plan_frames, lpt, none"):
        forecast_frames(read, MILLISECOND_PER_PATCH, FAST, planner="magic")
    little = forecast_frames(read, FrameCost(1e-5), FAST, base=0.0302)
    assert "takes 0.6% less than 31 ms" in str(little)
