"""A made-up machine whose constants are known: a calibration finds them again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.architecture import load_model
from mimokit.config import ConfigError
from mimokit.config.sizes import ParallelSizes
from mimokit.prediction import Layout, Workload, predict
from mimokit.prediction.calibration import RankMeasurements, fit_calibration, measurements_of
from mimokit.prediction.calibration.cores import config_of_training, trainings
from mimokit.prediction.calibration.fit import fit_law
from mimokit.prediction.calibration.measurements import (
    CollectiveKind,
    CollectiveTime,
    Measurements,
    ProductTime,
    StepTime,
)
from mimokit.prediction.hardware import Cores, Hardware, load_hardware, save_hardware
from tests.rows import rows

CORES = Cores({1: 1.2, 2: 1.7, 4: 1.5, 8: 1.8}, 2e-3, 3e-3, {2: 6e-4, 4: 2e-4, 8: 1.5e-4})


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

    def product(self, rows: int, width: int, precision: str = "fp32") -> ProductTime:
        flops = 2.0 * rows * width**2
        seconds = self.start + flops / self.peak * (1 + self.half_width / width)
        return ProductTime(precision, rows, width, seconds)

    def collective(self, kind: CollectiveKind, ranks: int, size: int, far: bool) -> CollectiveTime:
        empty = CollectiveTime(kind, ranks, size, far, 1.0)
        latency = self.far_latency if far else self.latency
        bandwidth = self.far_bandwidth if far else self.bandwidth
        return replace(empty, seconds=empty.turns * latency + empty.moved / bandwidth)

    def measurements(self, hosts: tuple[str, ...] = ("here",) * 8) -> Measurements:
        """Return what devices would measure; groups of 8 span hosts if there are several."""
        far = len(set(hosts)) > 1
        kinds: tuple[CollectiveKind, ...] = ("all-reduce", "all-gather")
        return Measurements(
            device="a made-up machine",
            hosts=hosts,
            memory_bytes=2.0**31,
            memory_bandwidth=5e9,
            products=tuple(self.product(r, w) for r in (64, 1024) for w in (64, 128, 512)),
            attention={"fp32": 5e9},
            collectives=tuple(
                self.collective(kind, ranks, size, far and ranks == 8)
                for kind in kinds
                for ranks in (2, 4, 8)
                if ranks <= len(hosts)
                for size in (512, 16_384, 131_072, 524_288)
            ),
        )


MACHINE = Machine()


def on_cores(hardware: Hardware, cores: Cores = CORES) -> Hardware:
    """Return hardware with cores, and seconds of kernels and bytes that are not those of rates."""
    efficiency = replace(hardware.efficiency, kernel=1e-5)
    return replace(hardware, cores=cores, efficiency=efficiency, memory_bandwidth=4e9)


def steps_on(hardware: Hardware, ranks: int = 8) -> list[StepTime]:
    assert hardware.cores is not None
    alone = replace(hardware.cores, shared={1: 1.0, ranks: float(ranks)}, latency={})
    link = replace(hardware.domain, latency=1.5e-4)
    cpu = replace(hardware, cores=alone, domain=link, network=link)
    return [
        StepTime(
            training,
            predict(config_of_training(training), gpu=hardware).seconds,
            predict(config_of_training(training), gpu=cpu).seconds,
        )
        for training in trainings(ranks)
    ]


def test_constants_of_devices_are_found_again() -> None:
    found = fit_calibration(MACHINE.measurements())
    hardware, efficiency = found.hardware, found.hardware.efficiency
    reached = hardware.peak_flops["fp32"] * efficiency.matrix["fp32"]
    assert reached == pytest.approx(MACHINE.peak, rel=1e-6)
    assert efficiency.half_width == pytest.approx(MACHINE.half_width, rel=1e-6)
    assert efficiency.kernel == pytest.approx(MACHINE.start, rel=1e-6)
    assert hardware.domain.bandwidth == pytest.approx(MACHINE.bandwidth, rel=1e-6)
    assert hardware.domain.latency == pytest.approx(MACHINE.latency, rel=1e-6)
    assert hardware.network == hardware.domain
    assert (hardware.domain_ranks, hardware.cores) == (8, None)
    assert all(fit.mean_error < 1e-6 and not fit.outliers for fit in found.fits)


def test_constants_of_cores_are_found_again(tmp_path: Path) -> None:
    measured = MACHINE.measurements()
    planted = on_cores(fit_calibration(measured).hardware)
    found = fit_calibration(replace(measured, steps=tuple(steps_on(planted)))).hardware
    assert found.cores is not None
    assert found.efficiency.kernel == pytest.approx(1e-5, rel=1e-3)
    assert found.memory_bandwidth == pytest.approx(4e9, rel=1e-3)
    assert found.cores.micro_batch == pytest.approx(CORES.micro_batch, rel=1e-3)
    assert found.cores.step == pytest.approx(CORES.step, rel=1e-2)
    for name in ("shared", "latency"):
        assert getattr(found.cores, name) == pytest.approx(getattr(CORES, name), rel=1e-2)
    assert load_hardware(save_hardware(found, tmp_path / "here.json")) == found


def test_links_between_hosts_differ_from_links_within() -> None:
    hardware = fit_calibration(MACHINE.measurements(("a",) * 4 + ("b",) * 4)).hardware
    assert hardware.domain_ranks == 4
    assert hardware.domain.latency == pytest.approx(MACHINE.latency, rel=1e-6)
    assert hardware.network.latency == pytest.approx(MACHINE.far_latency, rel=1e-6)
    assert hardware.network.bandwidth == pytest.approx(MACHINE.far_bandwidth, rel=1e-6)


def test_a_stray_measurement_is_named_and_moves_nothing() -> None:
    measured = MACHINE.measurements()
    stray = replace(measured.products[3], seconds=10 * measured.products[3].seconds)
    products = (*measured.products[:3], stray, *measured.products[4:])
    found = fit_calibration(replace(measured, products=products))
    assert found.fits[0].outliers == (3,)
    assert "1024 x 64 x 64 (-90%)" in str(found)
    assert found.hardware.efficiency.half_width == pytest.approx(MACHINE.half_width, rel=1e-6)


def test_several_ranks_are_refused_where_one_alone_was_measured() -> None:
    hardware = fit_calibration(MACHINE.measurements(("here",))).hardware
    model = load_model("llama-2-7b")
    workload = Workload(seq_length=1024, global_batch_size=8, precision="fp32")
    sizes = [ParallelSizes(1, data=ranks) for ranks in (1, 2)]
    one, two = (Layout("homogeneous", {model.name: each}) for each in sizes)
    assert predict(model, one, workload, hardware).seconds > 0
    with pytest.raises(ConfigError, match="no links, as one rank alone was measured"):
        predict(model, two, workload, hardware)


def test_constants_are_those_of_the_precision_that_was_measured_first() -> None:
    measured = MACHINE.measurements()
    halved = [
        replace(MACHINE.product(p.rows, p.width, "bf16"), seconds=0.3 * p.seconds)
        for p in measured.products
    ]
    products = (*halved, *measured.products)
    both = replace(measured, products=products, attention={"bf16": 1e10, "fp32": 5e9})
    hardware = fit_calibration(both).hardware
    assert hardware.efficiency.kernel == pytest.approx(0.3 * MACHINE.start, rel=1e-6)
    assert hardware.efficiency.attention == pytest.approx(1e10 / hardware.peak_flops["bf16"])


def test_ranks_are_merged_by_their_medians_and_collectives_by_their_mean() -> None:
    """Who comes first in a collective pays more than who comes last, and a step pays for all."""
    measured = MACHINE.measurements()
    ranks = [
        RankMeasurements(
            "core", "here", True, 2.0**31, 4e9,
            tuple(replace(p, seconds=p.seconds * factor) for p in measured.products),
            {"fp32": 8e9},
            tuple(replace(c, seconds=c.seconds * factor) for c in measured.collectives),
        )
        for factor in (1.0, 1.0, 5.0)
    ]  # fmt: skip
    merged = measurements_of(ranks)
    assert merged.products == measured.products
    assert len(merged.collectives) == len(measured.collectives)
    seconds = 7 / 3 * measured.collectives[0].seconds
    assert merged.collectives[0].seconds == pytest.approx(seconds)


SIZES = np.geomspace(1e3, 1e7, 12)
TERMS = {"start": [1.0] * len(SIZES), "byte": SIZES.tolist()}
LABELS = [f"row {number}" for number in range(12)]


def noisy(start: float, rate: float, row: int, factor: float) -> list[float]:
    """Return times of a law with noise of 2 %, one of them wrong by a factor."""
    noise = 1 + 0.02 * np.random.default_rng(row).standard_normal(len(SIZES))
    seconds = (start + rate * SIZES) * noise
    seconds[row] *= factor
    return [float(each) for each in seconds]


@given(st.floats(1e-6, 1e-3), st.floats(1e-11, 1e-8), st.integers(0, 11), st.booleans())
@settings(max_examples=25)
def test_an_outlier_is_reported(start: float, rate: float, row: int, slow: bool) -> None:
    factor = 4.0 if slow else 0.25
    found = fit_law("link", TERMS, noisy(start, rate, row, factor), LABELS)
    assert row in found.outliers
    assert f"row {row}" in str(found)


@rows("factor", 0.25, 4.0)
def test_an_outlier_rarely_moves_the_law(factor: float) -> None:
    """If few rows determine a constant, an outlier among them moves it: nine of ten laws hold."""
    random = np.random.default_rng(0)
    moved = []
    for row in np.tile(np.arange(12), 6):
        start, rate = 10 ** random.uniform(-6, -3), 10 ** random.uniform(-11, -8)
        found = fit_law("link", TERMS, noisy(start, rate, int(row), factor), LABELS).constants
        law = found["start"] + found["byte"] * SIZES
        moved.append(np.abs(law / (start + rate * SIZES) - 1).max())
    assert np.quantile(moved, 0.9) < 0.05


def test_a_constant_that_is_not_there_is_zero_not_negative() -> None:
    assert fit_law("link", TERMS, (1e-9 * SIZES**1.1).tolist(), LABELS).constants["start"] == 0


@rows(
    "seconds, sentence",
    ([1.0], r"Calibration of link: it has 1 row for 2 constants"),
    *(([1.0, wrong], "positive number of seconds") for wrong in (0.0, -1.0, np.nan, np.inf)),
)
def test_what_cannot_be_fitted_is_refused(seconds: Sequence[float], sentence: str) -> None:
    terms = {"start": [1.0] * len(seconds), "byte": [2.0, 3.0][: len(seconds)]}
    with pytest.raises(ConfigError, match=sentence):
        fit_law("link", terms, seconds, LABELS)
