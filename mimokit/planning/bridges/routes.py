"""Ways to carry samples from the ranks of one module to those of another, and what each moves.

Routes are planned in samples. How many rows (tokens) a sample has is known when it is there: then
`row_range` says which rows of a tensor its samples are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mimokit.planning.ranks import SampleRange

RowRange = tuple[int, int]
"""Rows [start, stop) of a tensor that holds the samples' rows end to end."""

Form = Literal["leader", "shards", "copies"]

FORMS: tuple[Form, ...] = ("leader", "shards", "copies")
"""In the order of preference where they move the same."""

LEAST_SHARD_BYTES = 1 << 20
"""A shard below this is not worth a message of its own: what a message takes to start is then more
than what its share of the bytes takes to cross (0.2 to 0.5 ms at 2 GB/s over gloo, 10 to 20 µs at
50 GB/s over InfiniBand: about 1 MB on either)."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Samples that one rank sends to another.

    Attributes:
        source_rank: the rank that sends.
        destination_rank: the rank that receives.
        start: first sample, counted within the micro-batch.
        stop: one behind the last.
    """

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
        """Whether it is sent at all: what a rank gives itself it keeps."""
        return self.source_rank != self.destination_rank


def numbered(transfers: Iterable[Transfer]) -> Iterator[tuple[Transfer, int]]:
    """Yield transfers, each with its number among those of the same two ranks: the tag's split."""
    seen: Counter[tuple[int, int]] = Counter()
    for transfer in transfers:
        yield transfer, seen[transfer.ends]
        seen[transfer.ends] += 1


def counted_samples(ends: tuple[int, int], samples: Mapping[int, SampleRange]) -> SampleRange:
    """Return the samples that two ranks both hold; a message between them counts the rows of all.

    Args:
        ends: the rank that sends and the rank that receives.
        samples: rank -> what it holds, or comes to hold, of the micro-batch.
    """
    (first, last), (start, stop) = (samples[rank] for rank in ends)
    return max(first, start), min(last, stop)


@dataclass(frozen=True, slots=True)
class Replica:
    """One data-parallel replica of a module, at the stage that sends or receives.

    Attributes:
        ranks: those of its tensor (and context) parallel group; all hold, or come to hold, the
            same samples.
        leader: the one that speaks for all in the leader form.
        samples: of the micro-batch.
    """

    ranks: tuple[int, ...]
    leader: int
    samples: SampleRange


@dataclass(frozen=True)
class Route:
    """How samples cross in one direction, per micro-batch.

    leader: one rank of every sending replica sends to one of every receiving replica, which
    broadcasts to its group. shards: every receiving rank receives its own part of its replica's
    samples, and the group gathers the parts. copies: every receiving rank receives all samples of
    its replica.

    Attributes:
        form: leader, shards or copies.
        transfers: what crosses between the modules, by the receiving rank, then by sample; on
            shared ranks also what a rank keeps.
        groups: receiving ranks that then broadcast (the leader) or gather (in this order) among
            themselves; empty where nobody has to.
        bytes_between: bytes that cross from rank to rank between the modules.
        bytes_busiest: the most of them that one rank sends or receives.
        bytes_within: bytes that the groups then receive from within.
        messages: transfers from rank to rank.
        reason: one sentence that says what was chosen, and why.
    """

    form: Form
    transfers: tuple[Transfer, ...]
    groups: tuple[tuple[int, ...], ...]
    bytes_between: int
    bytes_busiest: int
    bytes_within: int
    messages: int
    reason: str = ""


def route(
    form: Form,
    senders: Sequence[Replica],
    receivers: Sequence[Replica],
    bytes_per_sample: int,
) -> Route | None:
    """Return the route of a form, or None where there is nothing to cut for it.

    Args:
        form: leader, shards or copies.
        senders: all replicas of the module that sends, in the order of their samples, of which
            each has as many.
        receivers: the same of the module that receives.
        bytes_per_sample: of what crosses.
    """
    ranks = len(receivers[0].ranks)
    start, stop = receivers[0].samples
    if form == "shards" and (ranks == 1 or (stop - start) % ranks):
        return None  # only whole samples are cut off
    served = max(1, len(receivers) // len(senders))  # receiving replicas per sending replica
    transfers = tuple(
        transfer
        for number, receiver in enumerate(receivers)
        for transfer in _to_replica(form, senders, receiver, number % served)
    )
    grouped = ranks > 1 and form != "copies"
    moved = [(t, (t.stop - t.start) * bytes_per_sample) for t in transfers if t.moves]
    load: Counter[int] = Counter()
    for transfer, size in moved:
        load[transfer.source_rank] += size
        load[transfer.destination_rank] += size
    # A group of T ranks ends with T copies, of which one came from outside.
    whole = sum(r.samples[1] - r.samples[0] for r in receivers) * bytes_per_sample
    return Route(
        form=form,
        transfers=transfers,
        groups=tuple(receiver.ranks for receiver in receivers) if grouped else (),
        bytes_between=sum(size for _, size in moved),
        bytes_busiest=max(load.values(), default=0),
        bytes_within=(ranks - 1) * whole if grouped else 0,
        messages=len(moved),
    )


def _to_replica(
    form: Form, senders: Sequence[Replica], receiver: Replica, number: int
) -> list[Transfer]:
    """Return what a receiver is sent; it has this number among those that its sender serves."""
    start, stop = receiver.samples
    if form == "leader":
        wanted = [(receiver.leader, receiver.samples)]
    elif form == "copies":
        wanted = [(rank, receiver.samples) for rank in receiver.ranks]
    else:
        part = (stop - start) // len(receiver.ranks)
        wanted = [
            (rank, (start + index * part, start + (index + 1) * part))
            for index, rank in enumerate(receiver.ranks)
        ]
    width = senders[0].samples[1] - senders[0].samples[0]
    found = []
    for index, (rank, (first, last)) in enumerate(wanted):
        for sender in senders[first // width : (last - 1) // width + 1]:
            begin, end = max(first, sender.samples[0]), min(last, sender.samples[1])
            # The ranks of a sending group hold the same: they take turns.
            turn = (number * len(wanted) + index) % len(sender.ranks)
            source = sender.leader if form == "leader" else sender.ranks[turn]
            source = rank if rank in sender.ranks else source  # it has them already
            found.append(Transfer(source, rank, begin, end))
    return found


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
