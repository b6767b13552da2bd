"""Measurements of `calibrate`, as data, and those of all ranks merged into one.

All ranks measure at once, as in training. Seconds are those of a core where ranks compute on a CPU,
whichever ranks share it: CPU seconds of the process, with the threads of gloo. Elsewhere they are
those of the device.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mimokit.units import counted

CollectiveKind = Literal["all-reduce", "all-gather"]


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
        size: bytes of the full result.
        across: a group spans hosts.
    """

    kind: CollectiveKind
    ranks: int
    size: int
    across: bool
    seconds: float

    @property
    def turns(self) -> int:
        """Number of times that data pass through the group: an all-reduce is two gathers."""
        return 2 if self.kind == "all-reduce" else 1

    @property
    def moved(self) -> float:
        """Bytes that a rank sends."""
        return self.turns * self.size * (self.ranks - 1) / self.ranks


@dataclass(frozen=True)
class Training:
    """The sizes of a small training whose steps are measured.

    Attributes:
        samples: of a replica, in a micro-batch.
    """

    ranks: int
    layers: int = 1
    micro_batches: int = 1
    samples: int = 2
    tensor: int = 1

    def __str__(self) -> str:
        layers, batches = counted(self.layers, "layer"), counted(self.micro_batches, "micro-batch")
        return f"{layers}, {batches} of {self.samples}, TP{self.tensor}"


@dataclass(frozen=True)
class StepTime:
    """Steps of a small training on ranks that share cores.

    Attributes:
        seconds: of the wall clock, per step.
        cpu_seconds: of a rank per step.
    """

    training: Training
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class RankMeasurements:
    """What one rank measured.

    Attributes:
        shares_cores: the rank computes on a CPU.
        memory_bandwidth: bytes per second that are read and written.
        attention: precision -> operations per second.
    """

    device: str
    host: str
    shares_cores: bool
    memory_bytes: float
    memory_bandwidth: float
    products: tuple[ProductTime, ...]
    attention: Mapping[str, float]
    collectives: tuple[CollectiveTime, ...]


@dataclass(frozen=True)
class Measurements:
    """What all ranks of a cluster measured: medians.

    Attributes:
        hosts: of every rank.
        steps: of small trainings; none where ranks have devices.
    """

    device: str
    hosts: tuple[str, ...]
    memory_bytes: float
    memory_bandwidth: float
    products: tuple[ProductTime, ...]
    attention: Mapping[str, float]
    collectives: tuple[CollectiveTime, ...]
    steps: tuple[StepTime, ...] = ()

    @property
    def ranks_per_host(self) -> int:
        """Largest number of ranks on one host."""
        return max(self.hosts.count(host) for host in self.hosts)


def measurements_of(
    ranks: Sequence[RankMeasurements], steps: Sequence[StepTime] = ()
) -> Measurements:
    """Return medians over ranks, and means of collectives, which cost ranks differently much."""
    first = ranks[0]
    timed = [time for rank in ranks for time in rank.collectives]
    alike = dict.fromkeys((time.kind, time.ranks, time.size) for time in timed)
    groups = [
        [time for time in timed if (time.kind, time.ranks, time.size) == key] for key in alike
    ]
    return Measurements(
        device=first.device,
        hosts=tuple(rank.host for rank in ranks),
        memory_bytes=min(rank.memory_bytes for rank in ranks),
        memory_bandwidth=statistics.median(rank.memory_bandwidth for rank in ranks),
        products=tuple(
            replace(product, seconds=statistics.median(rank.products[i].seconds for rank in ranks))
            for i, product in enumerate(first.products)
        ),
        attention={
            name: statistics.median(rank.attention[name] for rank in ranks)
            for name in first.attention
        },
        collectives=tuple(
            replace(
                group[0],
                across=any(time.across for time in group),
                seconds=statistics.fmean(time.seconds for time in group),
            )
            for group in groups
        ),
        steps=tuple(steps),
    )
