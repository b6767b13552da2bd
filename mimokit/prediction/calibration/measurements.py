"""Measurements of `calibrate`, as data, and those of all ranks merged into one.

`seconds` are of the wall clock, CPU seconds those of one rank. All measurements run on many ranks
at once, as in training. Pieces and collectives are also measured on fewer ranks, because active
ranks share caches.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mimokit.prediction.local_cpu.cost_model import collective_terms

CollectiveKind = Literal["all-reduce", "all-gather", "reduce-scatter", "broadcast", "send"]

IN_A_ROW = 3
"""A round calls an all-reduce this number of times in a row, as layers and the update do. The first
call is slower, because it waits for code and partner."""


@dataclass(frozen=True)
class ProductTime:
    """One matrix product [rows, width] x [width, width]."""

    precision: str
    rows: int
    width: int
    seconds: float

    @property
    def flops(self) -> float:
        """Floating-point operations."""
        return 2.0 * self.rows * self.width**2


@dataclass(frozen=True)
class CollectiveTime:
    """One collective. All other groups of the world call it at the same time.

    Attributes:
        kind: of the collective. A "send" is one message between two ranks.
        size: bytes of the full result, or of the message of a send.
        cpu_seconds: of one rank; for a send the mean of both.
    """

    kind: CollectiveKind
    ranks: int
    size: int
    across: bool
    seconds: float
    cpu_seconds: float

    @property
    def terms(self) -> Mapping[str, float]:
        """Terms that the CPU seconds depend on."""
        return collective_terms(self.kind, self.ranks, self.size)

    @property
    def in_a_row(self) -> int:
        """Number of calls in a row; see `calls_in_a_row`."""
        return calls_in_a_row(self.kind)

    @property
    def moved(self) -> float:
        """Bytes that a rank sends."""
        return self.terms["byte"]


def calls_in_a_row(kind: CollectiveKind) -> int:
    """Return the number of consecutive calls of a collective in a round."""
    return IN_A_ROW if kind == "all-reduce" else 1


@dataclass(frozen=True)
class PieceTime:
    """One piece of a training step on one rank, without communication."""

    piece: str
    terms: Mapping[str, float]
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Round:
    """Times of pieces and collectives in rounds through all of them.

    Attributes:
        pieces: of training steps, in the order of a round. `AROUND` is measured separately.
        collectives: by kind, group and size, in the order of a round: one after each piece.
        seconds: of the wall clock, for a round; 0 if ranks do not share cores.
    """

    ranks: int
    pieces: tuple[PieceTime, ...]
    collectives: tuple[CollectiveTime, ...]
    seconds: float


AROUND = "step"
"""Name of the piece for the cost of a step outside all other pieces."""


@dataclass(frozen=True)
class RankMeasurements:
    """What one rank measured.

    Attributes:
        shares_cores: the rank shares its CPU cores with other ranks. Seconds of products,
            attention and memory are then CPU seconds.
        cores: CPU seconds per second of the rank while all ranks compute.
        rounds: those in which this rank was active. It may have been in no group.
    """

    device: str
    host: str
    shares_cores: bool
    memory_bytes: float
    memory_bandwidth: float
    cores: float
    products: tuple[ProductTime, ...]
    attention: Mapping[str, float]
    rounds: tuple[Round, ...]


@dataclass(frozen=True)
class Measurements:
    """All measurements of a cluster.

    Attributes:
        cores: CPU seconds per second of all ranks of a host together.
        sharing: time of a rank divided by its time on a separate core.
        rounds: on increasing numbers of ranks; the last has all ranks active.
    """

    device: str
    hosts: tuple[str, ...]
    memory_bytes: float
    memory_bandwidth: float
    cores: float
    sharing: float
    products: tuple[ProductTime, ...]
    attention: Mapping[str, float]
    rounds: tuple[Round, ...]

    @property
    def all_at_work(self) -> Round:
        """The round in which all ranks were active."""
        return self.rounds[-1]

    @property
    def ranks_per_host(self) -> int:
        """Largest number of ranks on one host."""
        return max(self.hosts.count(host) for host in self.hosts)


def merge(ranks: Sequence[RankMeasurements]) -> Measurements:
    """Return medians over ranks, and means for the CPU seconds of collectives.

    The cost of a collective differs between ranks with their position and order of arrival, and a
    step pays for all of them. If ranks share cores, times are multiplied by ranks per core.
    """
    first = ranks[0]
    hosts = tuple(rank.host for rank in ranks)
    cores = max(
        sum(rank.cores for rank in ranks if rank.host == host) for host in dict.fromkeys(hosts)
    )
    busiest = max(hosts.count(host) for host in hosts)
    slower = max(1.0, busiest / cores) if first.shares_cores else 1.0
    products = tuple(
        replace(product, seconds=slower * statistics.median(r.products[i].seconds for r in ranks))
        for i, product in enumerate(first.products)
    )
    attention = {
        name: statistics.median(rank.attention[name] for rank in ranks) / slower
        for name in first.attention
    }
    return Measurements(
        device=first.device,
        hosts=hosts,
        memory_bytes=min(rank.memory_bytes for rank in ranks),
        memory_bandwidth=statistics.median(rank.memory_bandwidth for rank in ranks) / slower,
        cores=cores,
        sharing=slower,
        products=products,
        attention=attention,
        rounds=tuple(_round(ranks, round_.ranks) for round_ in first.rounds),
    )


def _round(ranks: Sequence[RankMeasurements], at_work: int) -> Round:
    """Return the round on `at_work` ranks. The first ranks are active in all rounds."""
    rounds = [round_ for rank in ranks for round_ in rank.rounds if round_.ranks == at_work]
    return Round(
        at_work,
        tuple(_piece(rounds, i) for i in range(len(rounds[0].pieces))),
        _collectives(rounds),
        statistics.median(round_.seconds for round_ in rounds) if ranks[0].shares_cores else 0.0,
    )


def _piece(rounds: Sequence[Round], index: int) -> PieceTime:
    """Return a piece with median times. All ranks measure the same pieces."""
    return replace(
        rounds[0].pieces[index],
        seconds=statistics.median(round_.pieces[index].seconds for round_ in rounds),
        cpu_seconds=statistics.median(round_.pieces[index].cpu_seconds for round_ in rounds),
    )


def _collectives(rounds: Sequence[Round]) -> tuple[CollectiveTime, ...]:
    rows: dict[tuple[str, int, int], list[CollectiveTime]] = defaultdict(list)
    for rank in rounds:
        for timed in rank.collectives:
            rows[timed.kind, timed.ranks, timed.size].append(timed)
    return tuple(
        replace(
            same[0],
            across=any(timed.across for timed in same),
            seconds=statistics.median(timed.seconds for timed in same),
            cpu_seconds=statistics.fmean(timed.cpu_seconds for timed in same),
        )
        for same in rows.values()
    )
