"""What a machine can do: arithmetic, memory, links; where each number is from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mimokit.units import GIB


@dataclass(frozen=True)
class Link:
    """One kind of connection between ranks.

    Attributes:
        bandwidth: bytes per second that one rank can send while it receives as many.
        latency: seconds that a collective takes at least.
    """

    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Efficiency:
    """What of the specification is reached.

    Attributes:
        matrix: share of peak arithmetic that large matrix products sustain, per precision.
        attention: share of peak 16-bit arithmetic that a fused attention core sustains.
        memory: share of memory bandwidth that elementwise kernels reach.
        links: share of link bandwidth inside a domain that collectives reach.
        network: the same between domains.
        kernel: seconds that a kernel loses at its beginning and end, whatever its size.
        half_width: width of a matrix on one rank at which a product takes twice as long as `matrix`
            says; wide matrices reach it, narrow experts and thin shards do not.
    """

    matrix: Mapping[str, float]
    attention: float
    memory: float
    links: float
    network: float
    kernel: float
    half_width: float = 0.0


@dataclass(frozen=True)
class Hardware:
    """One GPU (or CPU core) of a cluster and its links.

    Attributes:
        name: what it is called.
        memory_gib: GiB that a process can use.
        memory_bandwidth: bytes per second.
        peak_flops: precision -> floating-point operations per second, dense.
        domain_ranks: ranks that are joined by the fast links (NVLink).
        domain: link between ranks of a domain.
        network: link between domains, per rank.
        efficiency: what of it is reached.
        sources: what the numbers are from.
    """

    name: str
    memory_gib: float
    memory_bandwidth: float
    peak_flops: Mapping[str, float]
    domain_ranks: int
    domain: Link
    network: Link
    efficiency: Efficiency
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def memory_bytes(self) -> float:
        """Bytes that a process can use."""
        return self.memory_gib * GIB

    @property
    def precisions(self) -> tuple[str, ...]:
        """Precisions that time can be predicted for."""
        return tuple(p for p in self.peak_flops if p in self.efficiency.matrix)
