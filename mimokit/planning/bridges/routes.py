"""How samples cross from one module to another, and the bytes that this moves.

Routes are planned in samples. The rows (tokens) of a sample are known when it arrives: then
`row_range` returns the rows of a tensor that belong to its samples.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mimokit.planning.ranks import SampleRange
from mimokit.units import counted

Direction = Literal["fan_in", "fan_out", "equal"]

RowRange = tuple[int, int]
"""Rows [start, stop) of a tensor that stores the samples' rows end to end."""

Form = Literal["leader", "shards", "copies"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Samples [start, stop) of a micro-batch that one rank sends to another."""

    source_rank: int
    destination_rank: int
    start: int
    stop: int

    @property
    def ends(self) -> tuple[int, int]:
        """The rank that sends and the rank that receives."""
        return self.source_rank, self.destination_rank

    @property
    def moves(self) -> bool:
        """Whether it is sent: False for samples that a rank keeps."""
        return self.source_rank != self.destination_rank


def numbered(transfers: Iterable[Transfer]) -> Iterator[tuple[Transfer, int]]:
    """Yield transfers, each with its number among those of the same two ranks: the tag's split."""
    seen: Counter[tuple[int, int]] = Counter()
    for transfer in transfers:
        yield transfer, seen[transfer.ends]
        seen[transfer.ends] += 1


def counted_samples(
    ends: tuple[int, int], sent: Mapping[int, SampleRange], taken: Mapping[int, SampleRange]
) -> SampleRange:
    """Return the samples that two ranks share; a message between them counts the rows of all."""
    (first, last), (start, stop) = sent[ends[0]], taken[ends[1]]
    return max(first, start), min(last, stop)


@dataclass(frozen=True)
class Route:
    """How samples cross in one direction, per micro-batch.

    leader: one rank of every sending replica sends to one rank of every receiving replica, which
    broadcasts to its group. shards: every receiving rank receives a part of its replica's samples,
    and the group gathers the parts. copies: every receiving rank receives all samples of its
    replica.

    Attributes:
        transfers: what crosses between the modules, by the receiving rank, then by sample; on
            shared ranks also what a rank keeps.
        kept: rank -> the samples that it keeps, where each rank takes none but its own.
        groups: receiving ranks that then broadcast (from the leader) or gather (in this order);
            empty if none have to.
        bytes_between: bytes that cross from rank to rank between the modules.
        bytes_busiest: the most of them that one rank sends or receives.
        bytes_within: bytes that ranks of the groups then receive from each other.
        messages: transfers from rank to rank.
        reason: one sentence with the form that was chosen and why.
    """

    form: Form
    transfers: tuple[Transfer, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    bytes_between: int = 0
    bytes_busiest: int = 0
    bytes_within: int = 0
    messages: int = 0
    reason: str = ""
    kept: Mapping[int, SampleRange] | None = None


def row_range(
    samples: SampleRange,
    stored: SampleRange,
    rows_per_sample: Sequence[int],
    rows: int | None = None,
) -> RowRange:
    """Return the rows that some samples have in a tensor with the rows of all stored samples.

    The sender cuts these rows out of what it has computed; the receiver, which knows the same
    counts, allocates exactly that many.
    """
    start, stop = samples
    first, last = stored
    if not first <= start <= stop <= last:
        raise ValueError(
            f"samples {start} to {stop} are not all among those stored, {first} to {last}"
        )
    if len(rows_per_sample) != last - first or any(count < 0 for count in rows_per_sample):
        raise ValueError(
            f"{last - first} stored samples need {counted(last - first, 'row count')} of 0 or "
            f"more, not {list(rows_per_sample)}"
        )
    if rows is not None and sum(rows_per_sample) != rows:
        raise ValueError(
            f"the samples have {counted(sum(rows_per_sample), 'row')} together, but the tensor has "
            f"{rows}"
        )
    before = sum(rows_per_sample[: start - first])
    return before, before + sum(rows_per_sample[start - first : stop - first])
