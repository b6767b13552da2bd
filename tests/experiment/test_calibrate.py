"""Calibrating a real cluster: a file that predictions take, and what is refused."""

import contextlib
from pathlib import Path

import pytest

import mimokit
from mimokit.cluster import ClusterError, EngineCluster, RankDied
from mimokit.config import ConfigError
from mimokit.prediction.calibration import Calibration
from mimokit.prediction.hardware import load_hardware
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


def test_the_file_is_read_again(calibrated: tuple[Calibration, list[str]]) -> None:
    found, _ = calibrated
    assert found.path is not None
    assert load_hardware(found.path) == found.hardware


def test_everything_is_measured(calibrated: tuple[Calibration, list[str]]) -> None:
    """Orders of magnitude hold on every machine that runs this."""
    found, said = calibrated
    assert said[0] == "calibrating: memory"
    trained = [
        line for line in said if line.endswith("that train, 1 layer, 1 micro-batch of 2, TP1")
    ]
    assert [line.split()[1] for line in trained] == ["1", "2", "4", "8"]
    hardware, cores = found.hardware, found.hardware.cores
    assert cores is not None
    assert list(cores.shared) == [1, 2, 4, 8]
    assert list(cores.latency) == [2, 4, 8]
    assert set(hardware.peak_flops) == {"fp32", "bf16"}
    assert hardware.domain_ranks == 8
    assert 1e6 < hardware.peak_flops["fp32"] < 1e14
    assert all(0.01 < each < 1000 for each in cores.shared.values())
    seconds = [
        mimokit.predict(digits_config((1, ranks), (1, ranks)), gpu=found.path).seconds
        for ranks in (2, 8)
    ]
    assert all(1e-4 < each < 100 for each in seconds)
    assert all(len(fit.residuals) == len(fit.labels) for fit in found.fits)


def test_one_engine_measures_no_links_and_the_precision_that_is_asked_for(tmp_path: Path) -> None:
    with EngineCluster(n=1, progress=False) as alone, measured_less_often(alone, ranks=1):
        found = mimokit.calibrate(alone, tmp_path / "here.json", precision="bf16").hardware
    assert set(found.peak_flops) == {"fp32", "bf16"}, "small trainings compute in fp32"
    assert not found.has_links
    one, two = (digits_config((1, ranks), (1, ranks)) for ranks in (1, 2))
    assert 0 < mimokit.predict(one, gpu=found).seconds < 3600
    with pytest.raises(ConfigError, match=r"2 ranks.*calibrate a cluster of 2 or more engines"):
        mimokit.predict(two, gpu=found)


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
