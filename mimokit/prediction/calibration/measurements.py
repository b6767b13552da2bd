"""Measurements of `calibrate`, as data. CPU seconds are those of one rank.

All measurements run on many ranks at once, as in training. Pieces and collectives are also measured
on fewer ranks, because active ranks share caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mimokit.prediction.local_cpu.cost_model import collective_terms

CollectiveKind = Literal["all-reduce", "all-gather", "reduce-scatter", "broadcast", "send"]

IN_A_ROW = 3
"""A round calls an all-reduce this number of times in a row, as layers and the update do. The first
call is slower, because it waits for code and partner."""


@dataclass(frozen=True)
class ProductTime:
    """One matrix product [rows, width] x [width, width].

    Attributes:
        precision: fp32, bf16.
        rows: of the left matrix: tokens.
        width: of both matrices.
        seconds: of the wall clock.
    """

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
        seconds: of the wall clock.
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
    """One piece of a training step on one rank, without communication.

    Attributes:
        terms: term that its time depends on -> amount.
        seconds: of the wall clock.
        cpu_seconds: of the process.
    """

    piece: str
    terms: Mapping[str, float]
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Round:
    """Times of pieces and collectives in rounds through all of them.

    Attributes:
        ranks: number of active ranks. The other ranks sleep.
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
        memory_bytes: that the rank can use.
        memory_bandwidth: bytes per second, read and written.
        cores: CPU seconds per second of the rank while all ranks compute.
        attention: precision -> operations per second of the attention core.
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
        memory_bytes: that one rank can use.
        memory_bandwidth: bytes per second of one rank, read and written.
        cores: CPU seconds per second of all ranks of a host together.
        sharing: time of a rank divided by its time on a separate core.
        attention: precision -> operations per second of the attention core.
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
