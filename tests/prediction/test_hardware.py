"""Hardware by name and from files, and what is refused."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from mimokit.architecture import load_model
from mimokit.config import ConfigError, Problem
from mimokit.config.sizes import ParallelSizes
from mimokit.prediction import Layout, Workload, predict
from mimokit.prediction.hardware import hardware_names, load_hardware, save_hardware
from mimokit.prediction.hardware.hardware import hardware_from_mapping
from tests.rows import each, rows


def test_all_gpus_are_shipped_with_their_sources() -> None:
    wanted = {"a100", "h100", "h200", "b200", "b300", "gb200", "gb300", "a6000"}
    assert wanted <= set(hardware_names())
    for name in hardware_names():
        sources = load_hardware(name).sources
        assert {"peak", "memory_gib", "domain", "network"} <= set(sources)


def test_efficiency_is_a_share() -> None:
    for name in hardware_names():
        efficiency = load_hardware(name).efficiency
        shares = (*efficiency.matrix.values(), efficiency.attention, efficiency.memory)
        assert all(0 < share <= 1 for share in shares)


@rows("suffix", "json", "yaml")
def test_a_file_of_ones_own(tmp_path: Path, suffix: str) -> None:
    mine = replace(load_hardware("h100"), name="this machine", memory_gib=16.0)
    path = save_hardware(mine, tmp_path / f"mine.{suffix}")  # JSON is YAML
    assert load_hardware(path) == mine
    assert load_hardware(str(path)) == mine


def test_yaml_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "laptop.yaml"
    path.write_text(
        """
name: laptop
memory_gib: 8
memory_bandwidth: 2.0e+10
peak_flops: {fp32: 1.0e+11}
domain_ranks: 4
domain: {bandwidth: 4.0e+9, latency: 1.0e-5}
network: {bandwidth: 1.0e+9, latency: 1.0e-4}
efficiency: {matrix: {fp32: 0.5}, attention: 0.2, memory: 0.7, links: 1, network: 1, kernel: 0}
""",
        encoding="utf-8",
    )
    laptop = load_hardware(path)
    assert laptop.precisions == ("fp32",)
    assert laptop.domain.latency == 1e-5


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_hardware(tmp_path / "nowhere.json")
    missing = tmp_path / "empty.json"
    missing.write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match="peak_flops is missing"):
        load_hardware(missing)


def test_unknown_names_offer_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"GPU 'h1000': .* did you mean .*h100"):
        load_hardware("h1000")
    for none in (None, 3):
        with pytest.raises(ConfigError, match=f"GPU '{none}': it does not exist; "):
            load_hardware(none)  # type: ignore[arg-type]


COMMON = {
    "RTX A6000": "a6000",
    "nvidia-a6000": "a6000",
    "NVIDIA H100 80GB HBM3": "h100",
    "A100 SXM4 80GB": "a100",
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "H200 141GB": "h200",
    "a100-4nic": "a100-4nic",
}


def test_common_names_mean_the_shipped_ones() -> None:
    wrong = [one for one, name in COMMON.items() if load_hardware(one) is not load_hardware(name)]
    assert not wrong


@rows("other", "NVIDIA H100 PCIe", "RTX 6000 Ada", "H100 94GB", "NVIDIA")
def test_other_boards_are_not_taken_for_shipped_ones(other: str) -> None:
    with pytest.raises(ConfigError, match=f"GPU '{other.lower()}': it does not exist"):
        load_hardware(other)


NUMBERS = [
    *(("memory_gib",), ("memory_bandwidth",), ("domain_ranks",), ("peak_flops", "bf16")),
    *((link, field) for link in ("domain", "network") for field in ("bandwidth", "latency")),
    *(("efficiency", name) for name in ("attention", "memory", "links", "network", "kernel")),
    *(("efficiency", "half_width"), ("efficiency", "matrix", "bf16")),
]


def changed(path: tuple[str, ...], value: object) -> dict[str, Any]:
    """Return the content of the H100's file with one other value."""
    content = asdict(load_hardware("h100"))  # dicts of its own
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return content


WRONG = [{}, [], None, True, "1", 10**39, 1e308, 5e-324, -1, math.inf, math.nan]
MAY_BE_ZERO = ("latency", "kernel", "half_width")
"""Fields for which 5e-324 is as good as 0."""


WRONG_NUMBERS = {
    f"{'.'.join(path)} {value}": (path, value)
    for path in NUMBERS
    for value in WRONG
    if value != 5e-324 or path[-1] not in MAY_BE_ZERO
}


@pytest.fixture
def refused(tmp_path: Path) -> Callable[[tuple[str, ...], object, str], Problem]:
    """Return what reads an H100's file with one other value, and returns its last problem."""

    def check(path: tuple[str, ...], value: object, words: str) -> Problem:
        file = tmp_path / "bad.json"
        file.write_text(json.dumps(changed(path, value)), encoding="utf-8")
        with pytest.raises(ConfigError, match=f"bad.json': {words}") as caught:
            load_hardware(file)
        assert path == ("peak_flops",) or len(caught.value.problems) == 1
        return caught.value.problems[-1]

    return check


def test_what_is_not_a_number_within_bounds_is_one_sentence(
    refused: Any, subtests: pytest.Subtests
) -> None:
    def check(path: tuple[str, ...], value: object) -> None:
        field = re.escape(".".join(path))
        problem = refused(path, value, rf"{field} .*(must be a (whole )?number|is a share) .*\.$")
        assert problem.field == ".".join(path)

    each(subtests, WRONG_NUMBERS, check)
    with pytest.raises(pytest.fail.Exception):
        check(("memory_gib",), 80.0)


@rows("path", *NUMBERS)
def test_within_the_bounds_every_prediction_is_finite(path: tuple[str, ...]) -> None:
    fits = [10.0**power for power in range(-7, 20)] + [0.0, 1, 10**6]
    taken = []
    sizes, model = ParallelSizes(tensor=2, pipeline=2, data=8), load_model("llama-3-8b")
    layout = Layout("homogeneous", {model.name: sizes})
    for value in fits:
        try:
            hardware = hardware_from_mapping(changed(path, value), "Test")
        except ConfigError:
            continue
        taken.append(value)
        found = predict(model, layout, Workload(2048, 64), hardware)
        numbers = (found.seconds, found.tokens_per_second, found.utilisation, found.low)
        assert all(0 < number < math.inf for number in numbers)
    assert len(taken) >= 2


OTHERS = [
    (("memory_gib",), None, "memory_gib must be a number above 0"),
    (("memory_bandwidth",), -1, r"memory_bandwidth \(-1\) must be a number above 0"),
    (("speed",), 3, r"speed \(3\) is none of name, memory_gib"),
    (("domain",), {"bandwidth": 1.0}, "domain.latency is missing"),
    (("network",), 7, r"network \(7\) must be a mapping"),
    (("peak_flops",), {"bf16": "fast"}, r"peak_flops.bf16 \(fast\) must be a number"),
    (("peak_flops",), {"fp32": 1e12}, "efficiency.matrix.bf16 .* has no peak_flops"),
    (("efficiency", "memory"), 80, r"efficiency.memory \(80\) is a share"),
    (("peak_flops",), {}, "peak_flops must have at least one entry"),
    (("efficiency", "matrix"), {}, "efficiency.matrix must have at least one entry"),
    (("peak_flops",), 3, r"peak_flops \(3\) must be a mapping"),
    (("domain",), [], r"domain \(\[\]\) must be a mapping"),
    (("name",), 5090, r"name \(5090\) must be text; put it in quotes"),
    (("sources",), 3, r"sources \(3\) must be a mapping"),
    (("efficiency", "speed"), 3, r"efficiency.speed \(3\) is none of matrix, attention"),
]


def test_other_wrong_values(refused: Any, subtests: pytest.Subtests) -> None:
    each(subtests, {words: (path, value, words) for path, value, words in OTHERS}, refused)
    with pytest.raises(AssertionError):
        refused(("name",), 5090, "name .* must be a number")
