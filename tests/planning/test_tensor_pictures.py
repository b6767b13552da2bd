"""A tensor as a picture: its cells, what is odd in it, and where samples begin."""

import numpy as np
import pytest

from mimokit.planning.stepper.pictures import (
    MOST_CELLS,
    MOST_READ,
    from_bfloat16_bits,
    matrix_of,
    picture_of,
    place_in,
)
from tests.rows import rows


def test_a_hundred_million_values_are_a_sketch_that_says_so():
    row = np.arange(1_000, dtype=np.float32)
    picture = picture_of(np.broadcast_to(row, (100_000, 1_000)), "float32")
    assert picture.is_sketch
    assert picture.read <= MOST_READ
    assert picture.cells.shape == MOST_CELLS
    assert "a sketch: 1 of 191 values was read" in str(picture)
    assert picture.norm == pytest.approx(np.sqrt(100_000 * np.square(row.astype(float)).sum()))
    part = picture_of(np.broadcast_to(row, (100_000, 1_000)), "float32", window=(5, 9, 990, 2_000))
    assert part.is_exact
    assert part.cells.tolist() == [list(range(990, 1_000))] * 4


def test_what_is_not_finite_stays_in_its_cell_and_is_counted():
    values = np.ones((200, 400), np.float32)
    values[150, 7], values[3, 399] = np.nan, -np.inf
    picture = picture_of(values, "float32")
    assert str(picture) == "min 1, max 1, norm 282.8, 1 NaN, 1 Inf"
    assert np.argwhere(np.isnan(picture.cells)).tolist() == [[72, 3]]
    assert np.argwhere(np.isinf(picture.cells)).tolist() == [[1, 191]]
    nothing = picture_of(np.full((2, 2), np.nan, np.float32), "float32")
    assert str(nothing) == "no finite value, 4 NaN"
    assert picture_of(np.zeros((0, 8), np.float32), "float32").cells.shape == (0, 8)


@rows(
    "shape, samples, images",
    ((6, 5), 3, False),
    ((7, 3, 5), 3, False),
    ((4, 1, 3, 5), 4, True),
    ((9,), None, False),
)
def test_a_cell_is_found_in_the_tensor(shape, samples, images):
    tensor = np.random.default_rng(0).normal(size=shape)
    matrix = matrix_of(tensor, samples, images=images)
    for row, column in ((0, 0), (len(matrix) - 1, matrix.shape[1] - 1), (len(matrix) // 2, 1)):
        place = place_in(shape, samples, row, column, images=images)
        assert tensor[place] == matrix[row, column]


def test_samples_begin_where_their_rows_do():
    tokens = np.zeros((7, 3, 5), np.float32)
    assert picture_of(tokens, "float32", samples=3).bounds == (0, 7, 14)
    rows = np.zeros((10, 5), np.float32)
    assert picture_of(rows, "float32", samples=3, rows_per_sample=[4, 0, 6]).bounds == (0, 4, 4)
    assert picture_of(rows, "float32", samples=3).bounds == ()


def test_bfloat16_is_read_from_its_bits():
    bits = (np.array([1.5, -2.0, 0.0], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    picture = picture_of(bits.view(np.int16), "bfloat16", decoded=from_bfloat16_bits)
    assert picture.cells.tolist() == [[1.5, -2.0, 0.0]]
