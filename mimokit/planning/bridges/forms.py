"""Lays out the transfers of a bridge, in each form that its samples can cross in."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mimokit.planning.bridges.routes import Direction, Form, Route, Transfer
from mimokit.planning.ranks import SampleRange
from mimokit.units import counted

FORMS: tuple[Form, ...] = ("leader", "shards", "copies")
"""In the order of preference between forms that move the same."""


LEAST_SHARD_BYTES = 1 << 20
"""Below this a shard is not worth a separate message: the message takes longer to start than its
bytes take to cross (0.2 to 0.5 ms at 2 GB/s over gloo, 10 to 20 µs at 50 GB/s over InfiniBand:
about 1 MB on either)."""


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
