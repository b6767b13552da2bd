"""A synthetic machine: what was planted is found again, and what was written is read again."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mimokit.architecture import load_model
from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.config import ConfigError
from mimokit.prediction import Layout, Workload, predict
from mimokit.prediction.calibration import (
    fit_calibration,
    load_calibration,
    merge,
    save_calibration,
)
from mimokit.prediction.calibration.calibration import FORMER, SUFFIX
from mimokit.prediction.calibration.cpu_costs import busy_share
from mimokit.prediction.calibration.measurements import RankMeasurements, Round
from mimokit.prediction.hardware import load_hardware
from tests.prediction.calibration.synthetic_machine import Machine
from tests.rows import rows

MACHINE = Machine()


def test_planted_constants_of_the_hardware_are_recovered() -> None:
    found = fit_calibration(MACHINE.measurements())
    hardware = found.hardware
    reached = hardware.peak_flops["fp32"] * hardware.efficiency.matrix["fp32"]
    assert reached == pytest.approx(MACHINE.peak, rel=1e-6)
    assert hardware.efficiency.half_width == pytest.approx(MACHINE.half_width, rel=1e-6)
    assert hardware.efficiency.kernel == pytest.approx(MACHINE.start, rel=1e-6)
    assert hardware.domain.bandwidth == pytest.approx(MACHINE.bandwidth, rel=1e-6)
    assert hardware.domain.latency == pytest.approx(MACHINE.latency, rel=1e-6)
    assert hardware.network == hardware.domain
    assert hardware.domain_ranks == 8
    assert all(fit.mean_error < 1e-6 and not fit.outliers for fit in found.fits)


def test_links_between_hosts_differ_from_links_within() -> None:
    hardware = fit_calibration(MACHINE.measurements(("a",) * 4 + ("b",) * 4)).hardware
    assert hardware.domain_ranks == 4
    assert hardware.domain.latency == pytest.approx(MACHINE.latency, rel=1e-6)
    assert hardware.network.latency == pytest.approx(MACHINE.far_latency, rel=1e-6)
    assert hardware.network.bandwidth == pytest.approx(MACHINE.far_bandwidth, rel=1e-6)


def test_planted_cpu_seconds_are_recovered() -> None:
    costs = fit_calibration(MACHINE.measurements()).costs.at(8)
    law = costs.pieces["language forward"]
    assert law["layer"] == pytest.approx(MACHINE.layer, rel=1e-6)
    assert law["ends"] == pytest.approx(MACHINE.ends, rel=1e-6)
    assert law["element"] == pytest.approx(MACHINE.element, rel=1e-6)
    for ranks in (2, 4, 8):
        wanted = MACHINE.collective("all-reduce", ranks, 60_000, False).cpu_seconds
        assert costs.collective("all-reduce", ranks, 60_000) == pytest.approx(wanted, rel=1e-6)
    assert costs.collective("all-reduce", 1, 1e9) == 0
    between = costs.collective("all-gather", 6, 1000)
    ends = [costs.collective("all-gather", ranks, 1000) for ranks in (4, 8)]
    assert ends[0] < between < ends[1]
    assert costs.message(512) == pytest.approx(MACHINE.call * 2 + MACHINE.byte * 512, rel=1e-6)


@rows("ranks, dearer", (1, 0.7), (2, 0.7), (3, 0.75), (4, 0.8), (6, 0.9), (8, 1.0), (16, 1.0))
def test_what_ranks_at_work_take_from_each_other_is_found_again(ranks: int, dearer: float) -> None:
    """Between the numbers that were measured lies a line; beyond them the nearest holds."""
    costs = fit_calibration(MACHINE.measurements()).costs
    at_work = costs.at(ranks)
    assert at_work.pieces["encoder backward"]["layer"] == pytest.approx(dearer * MACHINE.layer)
    assert at_work.collective("all-gather", 2, 512) == pytest.approx(
        dearer * costs.at(8).collective("all-gather", 2, 512)
    )


def test_a_stray_measurement_is_named_and_moves_nothing() -> None:
    measured = MACHINE.measurements()
    stray = replace(measured.products[3], seconds=10 * measured.products[3].seconds)
    products = (*measured.products[:3], stray, *measured.products[4:])
    found = fit_calibration(replace(measured, products=products))
    law = found.fits[0]
    assert law.outliers == (3,)
    assert "1024 x 64 x 64 (-90%)" in str(found)
    assert found.hardware.efficiency.half_width == pytest.approx(MACHINE.half_width, rel=1e-6)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    saved = save_calibration(fit_calibration(MACHINE.measurements()), tmp_path / "here.json")
    assert load_calibration(tmp_path / "here.json") == saved
    assert load_hardware(tmp_path / "here.json") == saved.hardware


def test_predict_takes_the_file(tmp_path: Path) -> None:
    saved = save_calibration(fit_calibration(MACHINE.measurements()), tmp_path / "here.json")
    model = load_model("llava-1.5-7b")
    sizes = ParallelSizes(2, data=4)
    layout = Layout("homogeneous", {"images": sizes, model.language.name: sizes})  # type: ignore[union-attr]
    workload = Workload(seq_length=1024, global_batch_size=8, precision="fp32")
    found = predict(
        model, layout, workload, hardware=tmp_path / "here.json", software=saved.software
    )
    floor = found.tflops_per_gpu * 1e12 / MACHINE.peak
    assert 0 < floor < 1
    assert sum(found.parts.values()) == pytest.approx(found.seconds)


def test_several_ranks_are_refused_where_one_alone_was_measured(tmp_path: Path) -> None:
    measured = MACHINE.measurements(("here",))
    alone = replace(measured.rounds[0], ranks=1, collectives=())
    saved = save_calibration(
        fit_calibration(replace(measured, rounds=(alone,))), tmp_path / "here.json"
    )
    assert load_calibration(tmp_path / "here.json") == saved
    model = load_model("llama-2-7b")
    workload = Workload(seq_length=1024, global_batch_size=8, precision="fp32")
    for ranks in (1, 2):
        layout = Layout("homogeneous", {model.name: ParallelSizes(1, data=ranks)})
        if ranks == 1:
            predict(model, layout, workload, hardware=saved.path, software=saved.software)
            continue
        with pytest.raises(ConfigError, match="no links, as one rank alone was measured"):
            predict(model, layout, workload, hardware=saved.path, software=saved.software)


def test_constants_are_those_of_the_precision_that_was_measured_first() -> None:
    measured = MACHINE.measurements()
    halved = [
        replace(MACHINE.product(p.rows, p.width, "bf16"), seconds=0.3 * p.seconds)
        for p in measured.products
    ]
    products = (*halved, *measured.products)
    both = replace(measured, products=products, attention={"bf16": 1e10, "fp32": 5e9})
    hardware = fit_calibration(both).hardware
    alone = fit_calibration(replace(both, products=tuple(halved))).hardware
    assert (
        hardware.efficiency.kernel == alone.efficiency.kernel == pytest.approx(0.3 * MACHINE.start)
    )
    assert hardware.efficiency.attention == pytest.approx(1e10 / hardware.peak_flops["bf16"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 1}, "it has format 1, and this version of mimokit reads format 2"),
        ({"format": None}, "it has no format"),
        ({"costs": {}}, "what calibrate wrote has been changed"),
        ({"software": {"speed": 1}}, "what calibrate wrote has been changed"),
        ({"cores": "many"}, "what calibrate wrote has been changed"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, change: dict, sentence: str) -> None:
    path = tmp_path / "here.json"
    save_calibration(fit_calibration(MACHINE.measurements()), path)
    neighbour = tmp_path / "here.calibration.json"
    neighbour.write_text(json.dumps({**json.loads(neighbour.read_text()), **change}))
    with pytest.raises(ConfigError, match=sentence) as refused:
        load_calibration(path)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("cores",), math.inf, "cores"),
        (("cores",), 0, "cores"),
        (("cores",), "2", "cores"),
        (("costs", "at_work", "8", "busy"), 1.5, "costs.at_work.8.busy"),
        (
            ("costs", "at_work", "8", "pieces", "language forward", "layer"),
            math.nan,
            "forward.layer",
        ),
        (("costs", "at_work", "8", "pieces", "language forward", "layer"), -1.0, "forward.layer"),
        (("costs", "at_work", "8", "pieces"), [], "at_work.8.pieces"),
        (("costs", "at_work", "many"), {}, "costs.at_work.many"),
        (("software", "host_layer"), {}, "software.host_layer"),
        (("software", "overlaps_data"), 1, "software.overlaps_data"),
        (("fits", 0, "residuals"), ["much"], "fits.0.residuals.0"),
        (("fits", 0, "labels"), None, "fits.0.labels"),
        (("extra",), 1, "extra"),
    ],
)
def test_a_changed_value_is_named(
    tmp_path: Path, path: tuple[Any, ...], value: object, field: str
) -> None:
    file = tmp_path / "here.json"
    save_calibration(fit_calibration(MACHINE.measurements()), file)
    neighbour = tmp_path / "here.calibration.json"
    content = place = json.loads(neighbour.read_text())
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    neighbour.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=rf"has been changed \(.*{re.escape(field)}") as refused:
        load_calibration(file)
    assert len(str(refused.value).splitlines()) == 1


def test_a_calibration_of_the_first_release_is_read_and_written_the_same(tmp_path: Path) -> None:
    first = Path(__file__).parents[2] / "fixtures/first_release/calibration/this-machine.json"
    found = load_calibration(first)
    assert set(found.costs.at_work) == {2, 4, 8}
    assert found.hardware.name == "one of 8 ranks on x86_64"
    again = save_calibration(found, tmp_path / "again.json")
    assert again.path is not None
    for suffix in (".json", SUFFIX):
        before, after = (json.loads(p.with_suffix(suffix).read_text()) for p in (first, again.path))
        if suffix == SUFFIX:
            stated, software = before.pop("software"), after.pop("software")
            assert {name: value for name, value in stated.items() if name not in FORMER} == {
                name: software[name] for name in stated if name not in FORMER
            }
        assert before == after
    assert load_calibration(tmp_path / "again.json") == again
    layout = Layout("homogeneous", {"llama-3-8b": ParallelSizes(data=8)})
    workload = Workload(128, 8, precision="fp32")
    slow = predict(load_model("llama-3-8b"), layout, workload, first, software=found.software)
    assert 0 < slow.seconds < float("inf")


def test_a_missing_file_neighbour_is_named(tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    save_calibration(fit_calibration(MACHINE.measurements()), path)
    (tmp_path / "here.calibration.json").write_text("{")
    with pytest.raises(ConfigError, match=r"here\.calibration\.json': it is not JSON"):
        load_calibration(path)
    (tmp_path / "here.calibration.json").unlink()
    with pytest.raises(ConfigError, match=r"here\.calibration\.json': it cannot be read"):
        load_calibration(path)


def test_ranks_are_merged_by_their_medians_and_slowed_by_sharing() -> None:
    measured = MACHINE.measurements()
    timed = tuple(replace(one, seconds=2.5) for one in measured.rounds)
    measured = replace(measured, rounds=timed)
    ranks = [
        RankMeasurements(
            device="core",
            host="here",
            shares_cores=True,
            memory_bytes=2.0**31,
            memory_bandwidth=4e9,
            cores=0.25,
            products=tuple(replace(p, seconds=p.seconds * factor) for p in measured.products),
            attention={"fp32": 8e9},
            rounds=tuple(_slowed(one, factor) for one in measured.rounds[first:]),
        )
        for factor, first in ((1.0, 0), (1.0, 0), (1.0, 1), (1.0, 1), *[(1.0, 2)] * 3, (50.0, 2))
    ]
    merged = merge(ranks)
    assert (merged.cores, merged.sharing) == (2.0, 4.0)
    assert merged.products[0].seconds == pytest.approx(4 * measured.products[0].seconds)
    assert merged.attention["fp32"] == pytest.approx(2e9)
    assert merged.memory_bandwidth == pytest.approx(1e9)
    assert merged.rounds == measured.rounds


def _slowed(one: Round, factor: float) -> Round:
    """Return a round whose pieces a rank found slower; what collectives cost it did not change."""
    pieces = tuple(replace(p, cpu_seconds=p.cpu_seconds * factor) for p in one.pieces)
    return replace(one, pieces=pieces, seconds=one.seconds * factor)


def test_collectives_cost_the_mean_over_ranks() -> None:
    """Who comes first in a collective pays more than who comes last, and a step pays for all."""
    one = MACHINE.collective("all-reduce", 2, 512, False)
    ranks = [
        RankMeasurements(
            *("core", "here", True, 2.0**31, 4e9, 1.0, (), {}),
            (Round(4, (), (replace(one, cpu_seconds=seconds),), 1.0),),
        )
        for seconds in (1e-3, 1e-3, 1e-3, 5e-3)
    ]
    assert merge(ranks).all_at_work.collectives[0].cpu_seconds == pytest.approx(2e-3)


def test_planted_losses_at_handovers_are_found_again() -> None:
    """Fewer ranks leave cores idle more often."""
    measured = MACHINE.measurements()
    planted = {2: 0.6, 4: 0.7, 8: 0.8}
    rounds = tuple(
        replace(one, seconds=_ideal(one) / planted[one.ranks]) for one in measured.rounds
    )
    found = fit_calibration(replace(measured, rounds=rounds))
    assert {n: costs.busy for n, costs in found.costs.at_work.items()} == pytest.approx(planted)
    assert found.costs.at(6).busy == pytest.approx(0.75)
    assert "60%, 70%, 80% of them busy on 2, 4, 8 ranks" in str(found)


def test_no_loss_is_found_where_a_round_was_quicker_or_ranks_share_no_cores() -> None:
    measured = MACHINE.measurements()
    quicker, slower = (
        replace(one, seconds=_ideal(one) * factor)
        for factor in (0.5, 2.0)
        for one in (measured.all_at_work,)
    )
    assert busy_share(measured, quicker) == 1.0
    assert busy_share(measured, slower) == pytest.approx(0.5)
    assert busy_share(measured, replace(slower, seconds=0.0)) == 1.0


def _ideal(one: Round) -> float:
    """Return what a round takes on two cores that never rest: every rank does the same."""
    spent = sum(p.cpu_seconds for p in one.pieces)
    spent += sum(c.cpu_seconds * c.in_a_row for c in one.collectives)
    return spent * one.ranks / 2
