"""The forms in which samples can cross from one module to another, and the bytes that each moves.

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

FORMS: tuple[Form, ...] = ("leader", "shards", "copies")
"""In the order of preference between forms that move the same."""

LEAST_SHARD_BYTES = 1 << 20
"""Below this a shard is not worth a separate message: the message takes longer to start than its
bytes take to cross (0.2 to 0.5 ms at 2 GB/s over gloo, 10 to 20 µs at 50 GB/s over InfiniBand:
about 1 MB on either)."""


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


def direction_between(senders: int, receivers: int) -> Direction:
    """Return the direction of a bridge from one number of replicas to another."""
    if senders == receivers:
        return "equal"
    return "fan_in" if senders > receivers else "fan_out"


def check_replicas(
    source: str, destination: str, replicas: tuple[int, int], samples_per_microbatch: int
) -> None:
    """Raise `ValueError` unless samples can be dealt to both ends of a bridge."""
    names = f"from '{source}' to '{destination}'"
    fewer, more = sorted(replicas)
    if more % fewer:
        raise ValueError(f"no bridge {names}: data_parallel {fewer} does not divide {more}")
    if samples_per_microbatch % more:
        raise ValueError(
            f"no bridge {names}: data_parallel {more} does not divide the micro-batch of "
            f"{counted(samples_per_microbatch, 'sample')}"
        )


@dataclass(frozen=True, slots=True)
class Replica:
    """One data-parallel replica of a module, at the stage that sends or receives.

    Attributes:
        ranks: its tensor (and context) parallel group; all have, or receive, the same samples.
        leader: the rank that sends or receives for all in the leader form.
    """

    ranks: tuple[int, ...]
    leader: int
    samples: SampleRange


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


def route(
    form: Form, senders: Sequence[Replica], receivers: Sequence[Replica], bytes_per_sample: int
) -> Route | None:
    """Return the route of a form, or None if the samples cannot be cut for it."""
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
    # A group of T ranks ends with T copies; one of them came from outside.
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
    transfers = []
    for index, (rank, (first, last)) in enumerate(wanted):
        for sender in senders[first // width : (last - 1) // width + 1]:
            begin, end = max(first, sender.samples[0]), min(last, sender.samples[1])
            # The ranks of a sending group have the same samples: they take turns.
            turn = (number * len(wanted) + index) % len(sender.ranks)
            source = sender.leader if form == "leader" else sender.ranks[turn]
            source = rank if rank in sender.ranks else source  # it already has them
            transfers.append(Transfer(source, rank, begin, end))
    return transfers


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
