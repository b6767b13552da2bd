"""What `calibrate` measures, as data. CPU seconds are of one rank.

Everything is measured on many ranks at once, as in training: what a rank reaches while the others
work beside it. Pieces and collectives are measured on fewer ranks as well, since those that work
beside a rank take its caches, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mimokit.prediction.local_cpu.cost_model import collective_terms

CollectiveKind = Literal["all-reduce", "all-gather", "reduce-scatter", "broadcast", "send"]

IN_A_ROW = 3
"""All-reduces come several in a row, layer after layer, then of counts, gradients and norm: so are
they called in a round. Code and partner are at hand then, which the first call has to wait for."""


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
        kind: what it is; a "send" is one message between two ranks.
        ranks: of the group.
        size: bytes of the whole result (of a send: of the message).
        across: the group spans hosts.
        seconds: of the wall clock.
        cpu_seconds: of one rank; of a send the mean of both.
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
    def in_a_row(self) -> int:
        """How many times it is called in a row, see `calls_in_a_row`."""
        return calls_in_a_row(self.kind)

    @property
    def moved(self) -> float:
        """Bytes that a rank sends."""
        return self.terms["byte"]


def calls_in_a_row(kind: CollectiveKind) -> int:
    """Return how many times a collective is called where a round comes to it."""
    return IN_A_ROW if kind == "all-reduce" else 1


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
class Round:
    """What pieces and collectives took in rounds through all of them.

    Attributes:
        ranks: at work; the others slept.
        pieces: of training steps, in the order of a round; `AROUND` is measured beside them.
        collectives: by kind, group and size, in the order of a round: one after each piece.
        seconds: of the wall clock, for a round; 0 where ranks share no cores.
    """

    ranks: int
    pieces: tuple[PieceTime, ...]
    collectives: tuple[CollectiveTime, ...]
    seconds: float


AROUND = "step"
"""The piece of what a step costs around all others."""


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
        rounds: those in which this rank was at work. No group may have had a place for it.
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
        rounds: on ever more ranks, all of them last.
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
        """The round in which no rank slept."""
        return self.rounds[-1]

    @property
    def ranks_per_host(self) -> int:
        """Ranks that share a host, on the fullest one."""
        return max(self.hosts.count(host) for host in self.hosts)
