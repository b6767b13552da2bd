"""What came instead of rows is told from the numbers alone."""

import numpy as np

from mimokit.experiment.stepping.row_differences import RowSource, how_it_differs
from tests.rows import rows

ROWS = np.random.default_rng(0).normal(size=(16, 6))
RIGHT = ROWS[8:13]
IMAGES = np.random.default_rng(1).normal(size=(4, 1, 3, 5))
NOISE = np.random.default_rng(2).normal(size=RIGHT.shape)
ONE_NAN = np.where(np.arange(6) == 2, np.nan, RIGHT[3])


def _with(row: int, values: np.ndarray) -> np.ndarray:
    changed = RIGHT.copy()
    changed[row] = values
    return changed


@rows(
    "came, words",
    (ROWS[7:12], "rows 7–11 came instead of rows 8–12"),
    (ROWS[8:12], "rows 8–11 came instead of rows 8–12"),
    (np.roll(RIGHT, 1, 0), "the rows are rolled by 1: row 12 came first"),
    (np.roll(RIGHT, -2, 0), "the rows are rolled by -2: row 10 came first"),
    (RIGHT[::-1], "the rows are in reverse order: row 12 came for row 8"),
    (RIGHT[[0, 2, 1, 3, 4]], "another order: row 10 came for 9, row 9 came for 10"),
    (2 * RIGHT, "it is scaled by 2"),
    (-RIGHT, "its sign is turned"),
    (0 * RIGHT, "only zeros came"),
    (np.roll(RIGHT, 3, 1), "its columns are rolled by 3"),
    (RIGHT[:, ::-1], "its columns are in reverse order"),
    (_with(3, ONE_NAN), "1 value of row 11 is not finite"),
    (_with(2, 3 * RIGHT[2]), "only row 10 differs: it is scaled by 3"),
    (RIGHT.astype(np.float16).astype(float), "its values are rounded"),
    (RIGHT + NOISE, "its values differ by up to"),
    (NOISE[:2], "[2, 6] came instead of [5, 6]"),
)
def test_rows(came, words):
    assert words in how_it_differs(RIGHT, came, RowSource(ROWS, 8))


def test_images_of_samples():
    source = RowSource(IMAGES, 0, "sample", 4)
    told = how_it_differs(IMAGES, IMAGES[::-1], source)
    assert told == "the samples are in reverse order: sample 7 came for sample 4"
    assert "its columns are in reverse order" in how_it_differs(IMAGES, IMAGES[..., ::-1], source)
    assert "its lines are rolled by 1" in how_it_differs(IMAGES, np.roll(IMAGES, 1, 2), source)
