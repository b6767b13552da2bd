"""Sample ranges of many ranks, worked out when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

SampleRange = tuple[int, int]


@dataclass(frozen=True, eq=False)
class RankRanges(Mapping[int, SampleRange]):
    """rank -> [start, stop), where blocks of ranks take the pieces in turn.

    Rank r has piece `(r - rank_offset) // ranks_per_piece % pieces`, and piece p is the samples
    [p * size, (p + 1) * size). It stays this small for any number of ranks; it equals any mapping
    with the same entries.

    Attributes:
        spans: the ranks that have an entry.
        rank_offset: the rank from which blocks are counted.
        ranks_per_piece: consecutive ranks that share a piece.
        pieces: pieces until they begin again.
        size: samples of a piece.
    """

    spans: tuple[range, ...]
    rank_offset: int
    ranks_per_piece: int
    pieces: int
    size: int

    def __getitem__(self, rank: int) -> SampleRange:
        if not any(rank in span for span in self.spans):
            raise KeyError(rank)
        start = (rank - self.rank_offset) // self.ranks_per_piece % self.pieces * self.size
        return start, start + self.size

    def __iter__(self) -> Iterator[int]:
        for span in self.spans:
            yield from span

    def __len__(self) -> int:
        return sum(map(len, self.spans))
