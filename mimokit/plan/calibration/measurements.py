"""What `calibrate` measures, as data. CPU seconds are of one rank.

Everything is measured on all ranks at once, as in training: what a rank reaches while the others
work beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mimokit.plan.shared_cores.costs import collective_terms

CollectiveKind = Literal["all-reduce", "all-gather", "reduce-scatter", "broadcast", "send"]


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
    """One collective, while all other groups of the world do the same.

    Attributes:
        kind: what it is; a "send" is one message each way between two ranks.
        ranks: of the group.
        size: bytes of the whole result (of a send: of one message).
        across: the group spans hosts.
        seconds: of the wall clock.
        cpu_seconds: of one rank.
    """

    kind: CollectiveKind
    ranks: int
    size: int
    across: bool
    seconds: float
    cpu_seconds: float

    @property
    def terms(self) -> Mapping[str, float]:
        """What the CPU seconds depend on."""
        return collective_terms(self.kind, self.ranks, self.size)

    @property
    def moved(self) -> float:
        """Bytes that a rank sends."""
        return self.terms["byte"]


@dataclass(frozen=True)
class PieceTime:
    """One piece of a training step on one rank, without communication.

    Attributes:
        piece: its name.
        terms: what its time depends on: term -> amount.
        seconds: of the wall clock.
        cpu_seconds: of the process.
    """

    piece: str
    terms: Mapping[str, float]
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class RankMeasurements:
    """What one rank measured.

    Attributes:
        device: what it computes on.
        host: where it runs.
        shares_cores: it computes on CPU cores that other ranks use as well; seconds of products,
            attention and memory are then CPU seconds.
        memory_bytes: that it can use.
        memory_bandwidth: bytes per second, read and written.
        cores: CPU seconds per second that it gets while all ranks compute.
        products: matrix products.
        attention: precision -> operations per second of the attention core.
        collectives: by kind, group and size; none on a rank that no group had a place for.
        pieces: of training steps.
        round_seconds: of the wall clock, for a round through all pieces and collectives.
    """

    device: str
    host: str
    shares_cores: bool
    memory_bytes: float
    memory_bandwidth: float
    cores: float
    products: tuple[ProductTime, ...]
    attention: Mapping[str, float]
    collectives: tuple[CollectiveTime, ...]
    pieces: tuple[PieceTime, ...]
    round_seconds: float


@dataclass(frozen=True)
class Measurements:
    """All that was measured on a cluster.

    Attributes:
        device: what a rank computes on.
        hosts: the host of every rank.
        memory_bytes: that one rank can use.
        memory_bandwidth: bytes per second of one rank, read and written.
        cores: CPU seconds per second that all ranks of a host get together.
        sharing: how much longer a rank takes than a core of its own would.
        products: matrix products.
        attention: precision -> operations per second of the attention core.
        collectives: by kind, group and size.
        pieces: of training steps.
        round_seconds: of the wall clock, for a round through all pieces and collectives; 0 where
            ranks share no cores.
    """

    device: str
    hosts: tuple[str, ...]
    memory_bytes: float
    memory_bandwidth: float
    cores: float
    sharing: float
    products: tuple[ProductTime, ...]
    attention: Mapping[str, float]
    collectives: tuple[CollectiveTime, ...]
    pieces: tuple[PieceTime, ...]
    round_seconds: float

    @property
    def ranks_per_host(self) -> int:
        """Ranks that share a host, on the fullest one."""
        return max(self.hosts.count(host) for host in self.hosts)
