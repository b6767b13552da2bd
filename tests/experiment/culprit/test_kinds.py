"""What is wrong with a tensor is told from its numbers and those of the ranks."""

import re
from dataclasses import replace

import numpy as np

from mimokit.experiment.culprit.arrays import OnRank
from mimokit.experiment.culprit.kinds import kind_of
from tests.experiment.culprit.reports import COLUMNS, CULPRIT, PARTS, WHOLE
from tests.rows import rows

RIGHT = tuple(replace(part, values=WHOLE.values[:, part.columns]) for part in PARTS)
SIZES = {"tensor_parallel": 2, "num_microbatches": 3}
EVERY = np.arange(64), np.arange(32)
NOISE, STALE = np.random.default_rng(2).normal(size=(2, *WHOLE.values.shape))


def _copies(*values: np.ndarray) -> tuple[OnRank, ...]:
    return tuple(OnRank(rank, "", *EVERY, one) for rank, one in enumerate(values))


SWAPPED = tuple(replace(RIGHT[n], values=RIGHT[1 - n].values) for n in (0, 1))
ONE_SAMPLE = WHOLE.values + np.where(WHOLE.samples == 2, 1.0, 0.0)[:, None]


@rows(
    "parts, words",
    (tuple(replace(p, values=2 * p.values) for p in RIGHT), "2 times .* is tensor_parallel"),
    (tuple(replace(p, values=p.values / 3) for p in RIGHT), "1 / num_microbatches"),
    (tuple(replace(p, values=0 * p.values) for p in RIGHT), "it is 0"),
    (_copies(NOISE, WHOLE.values - NOISE), "ranks 0, 1 hold summands .* not added up"),
    (_copies(NOISE, 2 * WHOLE.values - NOISE), "hold different values, of which it is the m"),
    (_copies(WHOLE.values, NOISE), "ranks 0, 1 should hold the same; rank 1 hold"),
    (SWAPPED, "rank 0 holds the part of rank 1"),
    (_copies(np.roll(WHOLE.values, 1, 0)), "its rows are shifted by 1"),
    (_copies(WHOLE.values[:, ::-1]), "its columns are in reverse order"),
    (_copies(ONE_SAMPLE), "only 16 of its 64 rows differ, of sample 2"),
    (RIGHT[:1], "64 of its 64 rows are not complete"),
    ((), "no rank has it"),
)
def test_a_pattern_is_told(parts, words):
    assert re.search(words, kind_of(WHOLE, parts, SIZES))


CHANGE = WHOLE.values - STALE
HALF_CHANGED = (STALE + CHANGE * (np.arange(32) < 16), STALE + CHANGE * (np.arange(32) >= 16))


@rows(
    "copies, words",
    ((STALE,), "it is what it was before the update"),
    ((STALE + 2 * CHANGE,), "its change is 2 times .* is tensor_parallel"),
    (HALF_CHANGED, "ranks 0, 1 should hold the same; ranks 0, 1 hold something else"),
)
def test_a_weight_is_told_by_what_an_update_changes(copies, words):
    assert re.search(words, kind_of(WHOLE, _copies(*copies), SIZES, stale=STALE))


def test_a_pattern_is_told_through_the_noise_of_fewer_bits():
    noisy = 2 * WHOLE.values * (1 + 0.01 * NOISE)
    assert kind_of(WHOLE, _copies(noisy), SIZES) == ""
    assert "2 times" not in kind_of(WHOLE, _copies(WHOLE.values + NOISE), SIZES, within=0.1)
    assert "is 2 times what it should be, which is tensor_p" in kind_of(
        WHOLE, _copies(1.001 * noisy), SIZES, within=0.1
    )
    assert kind_of(WHOLE, _copies(1.001 * noisy / 2), SIZES, within=0.1) == "", "by no factor"


def test_the_picture_has_each_cell_and_the_borders_of_shards():
    divergence = CULPRIT.divergence
    assert divergence is not None
    wrong = [cell for cell in divergence.cells() if cell["difference"] > 0]
    assert {cell["column"] // 16 for cell in wrong} == {1}
    assert [(one["rank"], one["column"], one["column_stop"]) for one in divergence.borders()] == [
        (rank, int(columns[0]), int(columns[-1]) + 1) for rank, columns in enumerate(COLUMNS)
    ]
