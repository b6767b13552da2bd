"""What the judge says of a missed target names the rows, and the effect that was planted."""

from __future__ import annotations

import numpy as np

from benchmarks.prediction.gains import Gain
from benchmarks.prediction.misses import (
    gain_misses,
    likely_part,
    order_misses,
    step_misses,
)
from benchmarks.prediction.score import Order, Score
from tests.prediction.test_judge import measured


def score(errors: list[float]) -> Score:
    rows = measured([1.0] * 4)
    return Score("dense h100 bf16", np.array(errors), np.array(errors), tuple(rows))


def test_one_row_that_is_far_off_is_named_and_the_rest_is_within() -> None:
    first, second = step_misses(score([0.01, 0.02, 0.01, -0.5]), 8.0)
    assert "1 of 4 rows are off by over 20 % (run 8.1)" in first
    assert "software of that release" in first
    assert second == "dense h100 bf16: without them the mean is 1.3 %, within the target."


def test_rows_that_are_all_too_slow_are_said_to_be_so_throughout() -> None:
    (sentence,) = step_misses(score([0.1, 0.12, 0.11, 0.1]), 8.0)
    assert "predicted too slow throughout (+10.8 % on average)" in sentence
    assert "matrix products" in sentence  # the largest part


def test_the_part_that_bad_rows_have_more_of_is_blamed() -> None:
    parts = {
        "matrix": np.array([0.8, 0.8, 0.7, 0.6]),
        "tensor": np.array([0.0, 0.0, 0.1, 0.2]),
    }
    assert likely_part(np.array([False, False, True, True]), parts) == "tensor"
    assert likely_part(np.array([True] * 4), parts) == "matrix"


def test_the_workload_of_the_lowest_order_and_its_swapped_pair_are_named() -> None:
    orders = [
        Order("good", "table", 6, 0.95, 0.0),
        Order("bad", "table", 4, 0.4, 0.1, ("first", "second"), 0.01, 1.0, 3, 2),
    ]
    sentence, pairs = order_misses(orders, 0.9)
    assert "of the 3 swapped pairs in them 2 are ties within noise" in pairs
    assert pairs.endswith("with ties as predicted 1 of the 1 would be ordered by 0.9 or more.")
    assert "1 of 2 workloads" in sentence
    assert "lowest is bad (4 layouts), where 'first' was measured faster than 'second'" in sentence
    assert sentence.endswith("a tie within noise.")
    assert not list(order_misses(orders[:1], 0.9))


def test_the_gain_that_is_missed_by_most_comes_first() -> None:
    gains = [Gain("small", 5.0, 4.0), Gain("large", 40.0, 10.0), Gain("wrong", 10.0, -1.0)]
    (sentence,) = gain_misses(gains, 5.0)
    assert sentence.startswith("gains: 2 of 3 are off by over 5 points, most large (+40.0 %")
    assert not list(gain_misses(gains[:1], 5.0))
