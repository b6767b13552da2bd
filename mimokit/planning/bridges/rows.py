"""From samples to rows, once it is known how many rows (tokens) each sample has."""

from __future__ import annotations

from collections.abc import Sequence

from mimokit.planning.ranks import SampleRange

RowRange = tuple[int, int]
"""Rows [start, stop) of a tensor that holds the samples' rows end to end."""


def row_range(
    samples: SampleRange,
    held: SampleRange,
    rows_per_sample: Sequence[int],
    rows: int | None = None,
) -> RowRange:
    """Return the rows of some samples in a tensor that holds the rows of all held ones.

    The sender cuts these rows out of what it has computed; the receiver, which knows the same
    counts, makes room for exactly as many.

    Args:
        samples: the samples of a transfer.
        held: the samples whose rows the tensor holds, end to end.
        rows_per_sample: rows of each held sample.
        rows: of the tensor, where it is at hand to be checked.

    Raises:
        ValueError: samples that are not held, or counts that do not fit `held` or `rows`.
    """
    start, stop = samples
    first, last = held
    if not first <= start <= stop <= last:
        raise ValueError(f"samples {start} to {stop} are not all among the held {first} to {last}")
    if len(rows_per_sample) != last - first or any(count < 0 for count in rows_per_sample):
        raise ValueError(
            f"{last - first} held samples need as many row counts of 0 or more, not "
            f"{list(rows_per_sample)}"
        )
    if rows is not None and sum(rows_per_sample) != rows:
        raise ValueError(
            f"the samples have {sum(rows_per_sample)} rows together, but the tensor has {rows}"
        )
    before = sum(rows_per_sample[: start - first])
    return before, before + sum(rows_per_sample[start - first : stop - first])


def row_ranges(
    pieces: Sequence[SampleRange],
    held: SampleRange,
    rows_per_sample: Sequence[int],
    rows: int | None = None,
) -> tuple[RowRange, ...]:
    """Return `row_range` of every piece.

    Raises:
        ValueError: as `row_range`.
    """
    return tuple(row_range(piece, held, rows_per_sample, rows) for piece in pieces)
