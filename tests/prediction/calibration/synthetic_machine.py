"""A machine whose constants are known, measured without noise unless one is planted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mimokit.prediction.calibration.measurements import (
    CollectiveKind,
    CollectiveTime,
    Measurements,
    PieceTime,
    ProductTime,
    Round,
)

KINDS: tuple[CollectiveKind, ...] = ("all-reduce", "all-gather", "reduce-scatter")


@dataclass(frozen=True)
class Machine:
    """Constants that a calibration is to find again."""

    peak: float = 50e9
    half_width: float = 32.0
    start: float = 2e-6
    bandwidth: float = 2e9
    latency: float = 3e-4
    far_bandwidth: float = 1e8
    far_latency: float = 4e-3
    call: float = 2e-4
    byte: float = 1e-9
    layer: float = 1e-3
    ends: float = 2e-3
    element: float = 3e-9
    operation: float = 4e-11
    crowding: float = 0.05

    def product(self, rows: int, width: int, precision: str = "fp32") -> ProductTime:
        flops = 2.0 * rows * width**2
        seconds = self.start + flops / self.peak * (1 + self.half_width / width)
        return ProductTime(precision, rows, width, seconds)

    def collective(self, kind: CollectiveKind, ranks: int, size: int, far: bool) -> CollectiveTime:
        empty = CollectiveTime(kind, ranks, size, far, 1.0, 1.0)
        latency = self.far_latency if far else self.latency
        bandwidth = self.far_bandwidth if far else self.bandwidth
        turns = 2 if kind == "all-reduce" else 1
        seconds = turns * latency + empty.moved / bandwidth
        cpu = self.call * ranks + self.byte * empty.moved
        return CollectiveTime(kind, ranks, size, far, seconds, cpu)

    def piece(self, name: str, layers: int, elements: float, operations: float) -> PieceTime:
        terms = {"ends": 1.0, "layer": layers, "element": elements, "operation": operations}
        constants = (self.ends, self.layer, self.element, self.operation)
        cpu = sum(c * t for c, t in zip(constants, terms.values(), strict=True))
        return PieceTime(name, terms, 4 * cpu, cpu)

    def measurements(self, hosts: tuple[str, ...] = ("here",) * 8) -> Measurements:
        """Return what `calibrate` would see; groups of 8 span hosts if there are several."""
        spans = len(set(hosts)) > 1
        return Measurements(
            device="a made-up machine",
            hosts=hosts,
            memory_bytes=2.0**31,
            memory_bandwidth=5e9,
            cores=2.0,
            sharing=4.0,
            products=tuple(self.product(r, w) for r in (64, 1024) for w in (64, 128, 512)),
            attention={"fp32": 5e9},
            rounds=tuple(self.round(ranks, spans) for ranks in (2, 4, 8)),
        )

    def round(self, at_work: int, spans: bool = False) -> Round:
        """Return a round. All costs grow with the number of active ranks."""
        sizes = (512, 16_384, 131_072, 524_288)
        dearer = 1 + self.crowding * (at_work - 8)
        collectives = [
            self.collective(kind, ranks, size, spans and ranks == 8)
            for kind in KINDS
            for ranks in (2, 4, 8)
            if ranks <= at_work
            for size in sizes
        ]
        collectives += [self.collective("send", 2, size, False) for size in sizes]
        pieces = [
            self.piece(f"{module} {way}", layers, elements, operations)
            for module in ("language", "encoder")
            for way in ("forward", "backward")
            for layers in (1, 3)
            for elements, operations in ((1e5, 1e6), (1e6, 2e7), (4e6, 3e8))
        ]
        return Round(
            at_work,
            tuple(replace(p, cpu_seconds=dearer * p.cpu_seconds) for p in pieces),
            tuple(replace(c, cpu_seconds=dearer * c.cpu_seconds) for c in collectives),
            seconds=0.0,
        )
