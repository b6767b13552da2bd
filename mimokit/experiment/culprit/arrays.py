"""A tensor as one array, put together from the pieces of all ranks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mimokit.planning.seams import Floats, Integers, SeamPiece


@dataclass(frozen=True)
class Array:
    """A tensor as [rows, columns].

    Attributes:
        samples: of every row.
    """

    samples: Integers
    rows: Integers
    columns: Integers
    values: Floats


@dataclass(frozen=True)
class OnRank:
    """The part of a rank: where it lies in the whole array, and its values."""

    rank: int
    share: str
    rows: Integers
    columns: Integers
    values: Floats


def array_of(pieces: Sequence[SeamPiece]) -> Array:
    """Return the whole of pieces that are all of it."""
    rows = np.unique(np.concatenate([np.stack([p.samples, p.rows], 1) for p in pieces]), axis=0)
    columns = np.unique(np.concatenate([p.columns[p.columns >= 0] for p in pieces]))
    whole = Array(rows[:, 0], rows[:, 1], columns, np.zeros((len(rows), len(columns))))
    for piece in pieces:
        part = part_on_rank(whole, 0, piece)
        if part is not None:
            whole.values[np.ix_(part.rows, part.columns)] = part.values
    return whole


def part_on_rank(whole: Array, rank: int, piece: SeamPiece) -> OnRank | None:
    """Return where a piece lies in the whole, without rows that are not of it; None if none is."""
    place = {pair: n for n, pair in enumerate(_pairs(whole))}
    real = piece.columns >= 0
    columns = piece.columns[real]
    known = np.array([pair in place for pair in _pairs(piece)], bool)
    if not known.any() or not np.isin(columns, whole.columns).all():
        return None
    rows = np.array([place[pair] for pair in _pairs(piece) if pair in place], np.int64)
    at = np.searchsorted(whole.columns, columns)
    return OnRank(rank, piece.share, rows, at, piece.values[np.ix_(known, real)])


def _pairs(of: Array | SeamPiece) -> list[tuple[int, int]]:
    return list(zip(of.samples.tolist(), of.rows.tolist(), strict=True))


def rank_parts(whole: Array, by_rank: Mapping[int, Sequence[SeamPiece]]) -> list[OnRank]:
    """Return the parts of all ranks."""
    parts = (
        part_on_rank(whole, rank, piece) for rank, pieces in by_rank.items() for piece in pieces
    )
    return [part for part in parts if part is not None]


def deviating(
    whole: Array, parts: Sequence[OnRank], samples: Sequence[int], allowed: float, uncounted: float
) -> tuple[int, ...]:
    """Return the ranks whose part differs by more than is allowed.

    Args:
        samples: that differ; of a parameter there are none.
        allowed: distance relative to the part's share of the norm of the whole.
        uncounted: norm of a distance of the whole that is not counted.
    """
    size, ranks = max(1, whole.values.size), set[int]()
    for sample in samples or (0,):
        rows = whole.samples == sample if samples else np.ones(len(whole.samples), bool)
        norm = float(np.linalg.norm(whole.values[rows]))
        entries = max(1, int(rows.sum()) * whole.values.shape[1])
        for part in parts:
            own = rows[part.rows]
            right = whole.values[np.ix_(part.rows, part.columns)][own]
            distance = float(np.linalg.norm(part.values[own] - right))
            share = math.sqrt(right.size / entries)
            less = uncounted * math.sqrt(right.size / size)
            if not distance <= allowed * norm * share + less:
                ranks.add(part.rank)
    return tuple(sorted(ranks))


def assembled(whole: Array, parts: Sequence[OnRank]) -> Floats:
    """Return the array that the parts make up; copies of one part count once.

    Parts of different shares are added. What no rank has is not a number.
    """
    total = np.zeros_like(whole.values)
    there = np.zeros(whole.values.shape, bool)
    shares = dict.fromkeys(part.share for part in parts)
    for share in shares:
        own = np.zeros_like(total)
        for part in reversed([part for part in parts if part.share == share]):
            own[np.ix_(part.rows, part.columns)] = part.values
            there[np.ix_(part.rows, part.columns)] = True
        total += own
    return np.where(there, total, np.nan)
