"""Calibrating a real cluster: a file that predictions take, and what is refused."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import mimokit
from mimokit.cluster import ClusterError, EngineCluster, RankDied
from mimokit.config import ConfigError
from mimokit.prediction.calibration import Calibration, load_calibration
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.local_cpu.prediction import predict_shared
from tests.layouts import digits_config
from tests.planted import measured_less_often
from tests.shared_cluster import SharedCluster


@pytest.fixture(scope="module")
def calibrated(
    shared_cluster: SharedCluster, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Calibration, list[str]]:
    said: list[str] = []
    path = tmp_path_factory.mktemp("calibration") / "here.json"
    with measured_less_often(shared_cluster.get()):
        return mimokit.calibrate(shared_cluster.get(), path, progress=said.append), said


def test_the_files_are_read_again(calibrated: tuple[Calibration, list[str]]) -> None:
    found, _ = calibrated
    assert found.path is not None
    assert load_hardware(found.path) == found.hardware
    assert load_calibration(found.path) == found


def test_everything_is_measured(calibrated: tuple[Calibration, list[str]]) -> None:
    found, said = calibrated
    assert said[0] == "calibrating: cores and memory"
    rounds = [line for line in said if "pieces of a training step" in line]
    assert rounds == [
        f"calibrating: pieces of a training step, {ranks} ranks at work" for ranks in (2, 4, 8)
    ]
    assert set(found.hardware.peak_flops) == {"fp32", "bf16"}
    for ranks, groups in ((2, {2}), (4, {2, 4}), (8, {2, 4, 8})):
        assert set(found.costs.at_work[ranks].collectives["all-reduce"]) == groups
    assert set(found.costs.at(8).collectives) == {
        *("all-reduce", "all-gather", "reduce-scatter", "broadcast", "send")
    }
    assert found.hardware.domain_ranks == 8
    assert found.software.host_layer > 0
    assert all(len(fit.residuals) == len(fit.labels) for fit in found.fits)


def test_constants_are_those_of_a_machine(calibrated: tuple[Calibration, list[str]]) -> None:
    """Orders of magnitude, which hold on every machine that runs this."""
    found, _ = calibrated
    costs = found.costs.at(8)
    layer = costs.pieces["language forward"]["layer"]
    assert 1e-6 < layer < 10.0
    assert 1e6 < found.hardware.peak_flops["fp32"] < 1e14
    assert all(0 < costs.collective("all-reduce", ranks, 512) < 10.0 for ranks in (2, 8))


def test_one_engine_measures_no_links_and_the_precision_that_is_asked_for(tmp_path: Path) -> None:
    with (
        EngineCluster(n=1, progress=False) as alone,
        measured_less_often(alone, ranks=1),
    ):
        found = mimokit.calibrate(alone, tmp_path / "here.json", precision="bf16")
    assert load_calibration(tmp_path / "here.json") == found
    assert set(found.hardware.peak_flops) == {"bf16"}
    assert not found.hardware.has_links
    assert not found.costs.at(1).collectives
    one, two = (digits_config((1, ranks), (1, ranks)) for ranks in (1, 2))
    seconds = predict_shared(one, found.costs, found.cores).seconds
    assert 0 < seconds < 3600
    with pytest.raises(ConfigError, match=r"2 ranks.*calibrate 2 or more engines") as refused:
        predict_shared(two, found.costs, found.cores)
    assert len(str(refused.value).splitlines()) == 1


def test_a_precision_that_cannot_be_measured_is_refused(cluster: EngineCluster) -> None:
    with pytest.raises(ConfigError, match="'fp8' cannot be measured; give one of fp32, bf16, fp16"):
        mimokit.calibrate(cluster, "here.json", precision="fp8")


def test_a_closed_cluster_is_refused(tmp_path: Path) -> None:
    with EngineCluster(n=2, preload=(), progress=False) as closed:
        pass
    with pytest.raises(ClusterError, match="this cluster is closed"):
        mimokit.calibrate(closed, tmp_path / "here.json")


def test_a_path_that_predict_would_take_for_a_name_is_refused(cluster: EngineCluster) -> None:
    with pytest.raises(ConfigError, match=r"does not end in \.json"):
        mimokit.calibrate(cluster, "laptop")


def test_a_rank_that_dies_on_the_way_is_named(cluster: EngineCluster, tmp_path: Path) -> None:
    import os
    import signal

    pid = cluster.pids[3]
    assert pid is not None

    def kill_one(said: str) -> None:
        with contextlib.suppress(ProcessLookupError):  # killed before
            os.kill(pid, signal.SIGKILL)

    with measured_less_often(cluster), pytest.raises(RankDied, match="rank 3"):
        mimokit.calibrate(cluster, tmp_path / "here.json", progress=kill_one)
    assert not (tmp_path / "here.json").exists()
