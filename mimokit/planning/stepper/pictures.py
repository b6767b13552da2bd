"""A tensor as a picture: the cells of a matrix, and its lowest, highest and odd values.

A tensor that is too large to be read whole is sketched: values at equal distances are read, and the
picture says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_READ = 1 << 19
"""Values that are read of a tensor at most, so that its picture opens at once."""
MOST_CELLS = (96, 192)
"""Lines and places of a picture."""
SMALL = (12, 36)
"""Those of a picture in a list."""
MOST_THUMBNAILS, THUMBNAIL = 32, 64
"""Number of images that are shown as such, and the pixels of their longer side."""


@dataclass(frozen=True)
class TensorSamples:
    """Which samples a tensor of a rank has.

    Attributes:
        module: to whose items its rows belong.
        first: of them in the batch that the rank has read.
    """

    count: int
    module: str
    first: int = 0


Floats = NDArray[np.float32]
Window = tuple[int, int, int, int]
"""(first row, row behind the last, first column, column behind the last)."""


@dataclass(frozen=True)
class TensorPicture:
    """A tensor as a matrix: a row per sample, token or item, a column per feature.

    Attributes:
        shape, dtype: of the tensor.
        rows, columns: of the matrix.
        window: the part of the matrix that the cells show.
        cells: [lines, places]; a cell of several values has the one farthest from 0, or one that is
            not finite.
        low, high, norm: of the values that are finite; None if there are none.
        nans, infinite: how many were read.
        read: number of values that were read.
        bounds: first row of every sample; empty where it is not known.
        thumbnails: [images, height, width], or with 3 colours behind; None: they are no images.
    """

    shape: tuple[int, ...]
    dtype: str
    rows: int
    columns: int
    window: Window
    cells: Floats
    low: float | None
    high: float | None
    norm: float | None
    nans: int
    infinite: int
    read: int
    bounds: tuple[int, ...] = ()
    thumbnails: Floats | None = None

    @property
    def is_sketch(self) -> bool:
        """Whether only a part of the values was read."""
        return self.read < self.rows * self.columns

    @property
    def is_exact(self) -> bool:
        """Whether each cell is one value."""
        top, bottom, left, right = self.window
        return self.cells.shape == (bottom - top, right - left)

    def __str__(self) -> str:
        if self.low is None or self.high is None or self.norm is None:
            said = "no finite value"
        else:
            said = f"min {self.low:.4g}, max {self.high:.4g}, norm {self.norm:.4g}"
        odd = [f"{count:,} {name}" for count, name in self._odd() if count]
        if self.is_sketch:
            every = ceil(self.rows * self.columns / self.read)
            odd.append(f"a sketch: 1 of {every:,} values was read")
        return ", ".join([said, *odd])

    def _odd(self) -> tuple[tuple[int, str], ...]:
        return (self.nans, "NaN"), (self.infinite, "Inf")


def single(values: NDArray[Any]) -> Floats:
    """Return numbers in 32 bits."""
    return values.astype(np.float32, copy=False)


def from_bfloat16_bits(bits: NDArray[Any]) -> Floats:
    """Return the values of bfloat16 numbers of which the bits are given as integers."""
    return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def sample_axis(shape: Sequence[int], samples: int | None) -> int:
    """Return the dimension over samples: 1 of Megatron's [tokens, samples, features], else 0."""
    return int(len(shape) > 2 and shape[0] != samples and shape[1] == samples)


def matrix_of(array: NDArray[Any], samples: int | None, *, images: bool = False) -> NDArray[Any]:
    """Return a tensor as [rows, columns], samples first."""
    if array.ndim < 2:
        return array.reshape(1, -1)
    if images:
        return array.reshape(len(array), -1)
    return np.moveaxis(array, sample_axis(array.shape, samples), 0).reshape(-1, array.shape[-1])


def place_in(
    shape: Sequence[int], samples: int | None, row: int, column: int, *, images: bool = False
) -> tuple[int, ...]:
    """Return the index in a tensor of a cell of its matrix; see `matrix_of`."""
    if len(shape) < 2:
        return (column,) if shape else ()
    if images:
        return (row, *(int(place) for place in np.unravel_index(column, shape[1:])))
    axis = sample_axis(shape, samples)
    order = [axis, *(n for n in range(len(shape) - 1) if n != axis)]
    places = np.unravel_index(row, [shape[n] for n in order])
    index = dict(zip(order, (int(place) for place in places), strict=True))
    return (*(index[n] for n in range(len(shape) - 1)), column)


def _bounds(
    shape: Sequence[int], rows: int, samples: int | None, rows_per_sample: Sequence[int] | None
) -> tuple[int, ...]:
    if rows_per_sample and sum(rows_per_sample) == rows:
        return tuple(np.cumsum([0, *rows_per_sample[:-1]]).tolist())
    if samples and len(shape) > 1 and samples in (shape[0], shape[sample_axis(shape, samples)]):
        return tuple(range(0, rows, rows // samples))
    return ()


def picture_of(
    array: NDArray[Any],
    dtype: str,
    *,
    samples: int | None = None,
    rows_per_sample: Sequence[int] | None = None,
    window: Window | None = None,
    most: tuple[int, int] = MOST_CELLS,
    images: bool = False,
    decoded: Callable[[NDArray[Any]], Floats] = single,
) -> TensorPicture:
    """Draw a tensor.

    Args:
        samples: in the tensor, where it is known.
        rows_per_sample: where samples have different numbers of rows.
        window: of the matrix; None: all of it.
        images: the dimensions behind the first are (channels, height, width) or (height, width).
        decoded: turns values as they are stored into numbers.
    """
    matrix = matrix_of(array, samples, images=images)
    rows, columns = matrix.shape
    top, bottom, left, right = _clipped(window, rows, columns)
    whole = decoded(_strided(matrix))
    part = matrix[top:bottom, left:right]
    shown = whole if part.shape == matrix.shape else decoded(_strided(part))
    finite = whole[np.isfinite(whole)] if not np.isfinite(whole).all() else whole.reshape(-1)
    nans = int(np.isnan(whole).sum()) if finite.size < whole.size else 0
    return TensorPicture(
        shape=tuple(array.shape),
        dtype=dtype,
        rows=rows,
        columns=columns,
        window=(top, bottom, left, right),
        cells=_cells(shown, most),
        low=float(finite.min()) if finite.size else None,
        high=float(finite.max()) if finite.size else None,
        norm=_norm(finite, rows * columns / max(whole.size, 1)) if finite.size else None,
        nans=nans,
        infinite=whole.size - finite.size - nans,
        read=whole.size,
        bounds=_bounds(array.shape, rows, samples, rows_per_sample),
        thumbnails=_thumbnails(array, decoded) if images and array.ndim > 2 else None,
    )


def _clipped(window: Window | None, rows: int, columns: int) -> Window:
    if window is None:
        return 0, rows, 0, columns
    top, bottom, left, right = window
    top, left = min(max(top, 0), rows), min(max(left, 0), columns)
    return top, min(max(bottom, top), rows), left, min(max(right, left), columns)


def _strided(matrix: NDArray[Any]) -> NDArray[Any]:
    if matrix.size <= MOST_READ:
        return matrix
    rows, columns = matrix.shape
    down = min(ceil(matrix.size / MOST_READ), max(1, rows // MOST_CELLS[0]))
    across = ceil(ceil(rows / down) * columns / MOST_READ)
    return matrix[::down, ::across]


def _norm(values: Floats, scale: float) -> float:
    """Return the norm; of a sketch that of all values, were the others alike."""
    return float(np.sqrt(np.square(values, dtype=np.float64).sum() * scale))


def _cells(values: Floats, most: tuple[int, int]) -> Floats:
    if not values.size:
        return values.astype(np.float32)
    for axis, limit in enumerate(most):
        size = values.shape[axis]
        if size > limit:
            starts = np.arange(limit) * size // limit
            highest = np.maximum.reduceat(values, starts, axis)
            lowest = np.minimum.reduceat(values, starts, axis)
            values = np.where(np.abs(highest) >= np.abs(lowest), highest, lowest)
    return np.ascontiguousarray(values, np.float32)


def _thumbnails(array: NDArray[Any], decoded: Callable[[NDArray[Any]], Floats]) -> Floats:
    *_, height, width = array.shape
    every = ceil(max(height, width) / THUMBNAIL)
    images = array[:MOST_THUMBNAILS].reshape(-1, *array.shape[-3 if array.ndim > 3 else -2 :])
    small = decoded(np.ascontiguousarray(images[:MOST_THUMBNAILS, ..., ::every, ::every]))
    if small.ndim == 3:
        return small
    return np.moveaxis(small, 1, -1) if small.shape[1] == 3 else small.mean(1)
