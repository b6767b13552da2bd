"""The peak of which utilisation is a share."""

from dataclasses import replace
from pathlib import Path

import pytest

from mimokit.config import ConfigError, RuntimeConfig
from mimokit.prediction.device_peak import peak_of_device
from mimokit.prediction.hardware import Cores, Hardware, load_hardware, save_hardware
from mimokit.prediction.peak import peak_of_hardware
from tests.rows import rows

H100 = load_hardware("h100")


def _only(precision: str, peak: float) -> Hardware:
    efficiency = replace(H100.efficiency, matrix={precision: 0.5})
    return replace(H100, peak_flops={precision: peak}, efficiency=efficiency, domain_ranks=8)


@rows(
    "device, known",
    ("NVIDIA H100 80GB HBM3", "h100"),
    ("NVIDIA A100-SXM4-80GB", "a100"),
    ("NVIDIA GB200", "gb200"),
    ("NVIDIA H200", "h200"),
)
def test_a_gpu_is_known_by_its_name(device: str, known: str) -> None:
    assert peak_of_device(device) == load_hardware(known).peak_flops["fp32"]
    assert peak_of_device(device, "bf16") == load_hardware(known).peak_flops["bf16"]


@rows("device", None, "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA GH200 480GB", "Tesla T4")
def test_of_another_device_no_peak_is_made_up(device: str | None) -> None:
    assert peak_of_device(device) is None


def test_the_config_names_hardware_or_none() -> None:
    assert peak_of_hardware(RuntimeConfig(), 8) is None
    assert peak_of_hardware(RuntimeConfig(hardware="h100"), 8) == H100.peak_flops["fp32"]
    with pytest.raises(ConfigError, match="it does not exist"):
        peak_of_hardware(RuntimeConfig(hardware="h1000"), 8)


def test_hardware_without_the_precision_of_the_run_is_one_sentence(tmp_path: Path) -> None:
    file = save_hardware(_only("bf16", 1e15), tmp_path / "only.json")
    with pytest.raises(ConfigError, match=r"has no peak_flops of fp32.*those have: bf16"):
        peak_of_hardware(RuntimeConfig(hardware=str(file)), 8)


@rows("ranks, share", (1, 1.0), (2, 1.0), (4, 0.5), (16, 0.25))
def test_ranks_share_the_cores_that_were_calibrated(
    ranks: int, share: float, tmp_path: Path
) -> None:
    """Two cores, measured with eight ranks on a host: more ranks are on further hosts."""
    cores = Cores({1: 1.2, 2: 2.0, 8: 2.0}, 0.0, 0.0)
    file = save_hardware(replace(_only("fp32", 1e11), cores=cores), tmp_path / "here.json")
    found = peak_of_hardware(RuntimeConfig(hardware=str(file)), ranks)
    assert found == pytest.approx(1e11 * share)
