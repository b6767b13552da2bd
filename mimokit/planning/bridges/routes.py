"""Ways to carry samples from the ranks of one module to those of another, and what each moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mimokit.planning.ranks import SampleRange

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
