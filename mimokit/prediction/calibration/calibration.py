"""The result of `calibrate`: hardware, and how well its constants fit what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mimokit.prediction.calibration.cores import fit_cores
from mimokit.prediction.calibration.fit import FittedLaw, fit_law
from mimokit.prediction.calibration.measurements import CollectiveTime, Measurements, ProductTime
from mimokit.prediction.hardware import UNKNOWN_LINK, Efficiency, Hardware, RankLink
from mimokit.units import GIB, counted


def fit_hardware(measured: Measurements) -> tuple[Hardware, tuple[FittedLaw, ...]]:
    """Return the hardware of one rank, and the fits of its laws.

    The peak of a precision is the best rate of any product, or of infinitely wide ones by its law
    if that is more: half widths count from there. The bandwidth of a link is that of its
    collectives, so the efficiency of links is 1. If all ranks share a host, or each has a separate
    host, there is only one kind of link, and it is used for both. One rank has no link: layouts of
    several ranks are refused. On shared cores the latency is that of each rank in a ring.

    What hardware has once for all precisions (the cost of a kernel, the half width, the share of
    attention) is that of the precision that was measured first.
    """
    precisions = tuple(dict.fromkeys(product.precision for product in measured.products))
    products = {name: _product_law(name, measured.products) for name in precisions}
    peak = {name: _peak(name, measured.products, law) for name, law in products.items()}
    link_fits, domain, network = _links(measured)
    first = precisions[0]
    main = products[first]
    hardware = Hardware(
        name=measured.device,
        memory_gib=measured.memory_bytes / GIB,
        memory_bandwidth=measured.memory_bandwidth,
        peak_flops=peak,
        domain_ranks=measured.ranks_per_host,
        domain=domain,
        network=network,
        efficiency=Efficiency(
            matrix={name: _sustained(law, peak[name]) for name, law in products.items()},
            attention=min(1.0, measured.attention[first] / peak[first]),
            memory=1.0,
            links=1.0,
            network=1.0,
            kernel=main.constants["product"],
            half_width=_half_width(main),
        ),
        sources={
            "all": f"measured by calibrate() on {counted(len(measured.hosts), 'rank')} at once"
        },
    )
    return hardware, (*products.values(), *link_fits)


def _product_law(precision: str, products: Sequence[ProductTime]) -> FittedLaw:
    """Fit seconds = start + operations x (a + b / width)."""
    rows = [product for product in products if product.precision == precision]
    return fit_law(
        f"matrix products in {precision}",
        {
            "product": [1.0] * len(rows),
            "operation": [product.flops for product in rows],
            "operation / width": [product.flops / product.width for product in rows],
        },
        [product.seconds for product in rows],
        [f"{product.rows} x {product.width} x {product.width}" for product in rows],
    )


def _peak(precision: str, products: Sequence[ProductTime], law: FittedLaw) -> float:
    slope = law.constants["operation"]
    best = max(p.flops / p.seconds for p in products if p.precision == precision)
    return max(best, 1.0 / slope) if slope > 0 else best


def _sustained(law: FittedLaw, peak: float) -> float:
    slope = law.constants["operation"]
    return min(1.0, 1.0 / (slope * peak)) if slope > 0 else 1.0


def _half_width(law: FittedLaw) -> float:
    slope = law.constants["operation"]
    return law.constants["operation / width"] / slope if slope > 0 else 0.0


def _links(measured: Measurements) -> tuple[tuple[FittedLaw, ...], RankLink, RankLink]:
    near = [timed for timed in measured.collectives if not timed.across]
    far = [timed for timed in measured.collectives if timed.across]
    in_rings = bool(measured.steps)
    inside = _link_law("links within a host", near, in_rings) if near else None
    between = _link_law("links between hosts", far, in_rings) if far else None
    fits = tuple(fit for fit in (inside, between) if fit is not None)
    first = inside or between
    if first is None:
        return (), UNKNOWN_LINK, UNKNOWN_LINK
    return fits, _link(first), _link(between or first)


def _link_law(name: str, collectives: Sequence[CollectiveTime], in_rings: bool) -> FittedLaw:
    """Fit seconds = latency + bytes / bandwidth."""
    latencies = [float(timed.turns * (timed.ranks - 1 if in_rings else 1)) for timed in collectives]
    return fit_law(
        name,
        {"latency": latencies, "byte": [timed.moved for timed in collectives]},
        [timed.seconds for timed in collectives],
        [f"{timed.kind} of {timed.size} bytes over {timed.ranks}" for timed in collectives],
    )


def _link(law: FittedLaw) -> RankLink:
    byte = law.constants["byte"]
    return RankLink(bandwidth=1 / byte if byte > 0 else 1e15, latency=law.constants["latency"])


@dataclass(frozen=True)
class Calibration:
    """Result of `calibrate`."""

    hardware: Hardware
    fits: tuple[FittedLaw, ...]
    path: Path | None = None

    def __str__(self) -> str:
        cores = self.hardware.cores
        shared = [] if cores is None else [f"{n} share {c:.2g}" for n, c in cores.shared.items()]
        title = self.hardware.name + (f"; cores: {', '.join(shared)}" if shared else "")
        where = [] if self.path is None else [f'predict(..., hardware="{self.path}")']
        return "\n".join([title, *(f"  {fit}" for fit in self.fits), *where])


def fit_calibration(measured: Measurements) -> Calibration:
    """Fit hardware to measurements.

    Raises:
        ConfigError: there are too few measurements, or a time is not positive and finite.
    """
    hardware, fits = fit_hardware(measured)
    if not measured.steps:
        return Calibration(hardware, fits)
    hardware, of_steps = fit_cores(hardware, measured.steps)
    return Calibration(hardware, (*fits, of_steps))
