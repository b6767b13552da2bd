"""The constants that ship are those that the fit found."""

import json
from pathlib import Path

import pytest

import mimokit
from benchmarks.prediction.fit import (
    FITTED,
    IN_STACKS,
    SAME_CHIP,
    hardware_with,
    on_bound,
    software_with,
)
from benchmarks.prediction.fit_tried import TRIED
from benchmarks.prediction.page import PAGE, with_table
from mimokit.prediction.hardware import hardware_names, load_hardware
from mimokit.prediction.step_time import load_software
from mimokit.prediction.step_time.constants import CONSTANTS, value
from tests.rows import rows

FOUND = json.loads(FITTED.read_text(encoding="utf-8"))["all"]


@rows("name", *hardware_names())
def test_hardware_files_hold_the_fitted_constants(name: str) -> None:
    shipped, fitted = load_hardware(name).efficiency, hardware_with(FOUND)(name).efficiency
    assert dict(shipped.matrix) == pytest.approx(dict(fitted.matrix), rel=1e-2)
    for field in ("attention", "memory", "links", "network", "kernel", "half_width"):
        assert getattr(shipped, field) == pytest.approx(getattr(fitted, field), rel=1e-2)


def test_constants_are_few_and_inside_their_bounds() -> None:
    assert len(FOUND) + len(TRIED) <= 14
    assert FOUND.keys() | set(TRIED) == {name for name, one in CONSTANTS.items() if one.fitted}
    for name, one in CONSTANTS.items():
        assert one.holds(one.value)
        assert one.value == pytest.approx(FOUND.get(name, one.value), rel=1e-2)
        assert one.source


def test_a_constant_that_ends_on_a_bound_is_named() -> None:
    (sentence,) = on_bound({"memory": 0.85, "matrix h100": 0.66})
    assert sentence.startswith("memory ends on its bound 0.85 share: something is missing here")


@rows("name", *hardware_names())
def test_hardware_files_hold_the_constants_with_sources(name: str) -> None:
    hardware = load_hardware(name)
    chip = load_hardware(SAME_CHIP.get(name, name))
    kind = next((each for each in ("a100", "b300", "efa") if each in name), "")
    kind = "a100" if name == "a6000" else kind

    def row(field: str) -> str:
        """Return the row of a field: the one of the kind of GPU, or of all."""
        return f"{field} {kind}" if f"{field} {kind}" in CONSTANTS else field

    for field in ("memory", "links", "network", "kernel"):
        assert getattr(hardware.efficiency, field) == pytest.approx(value(row(field)), rel=1e-2)
    share = value(row("attention")) * chip.peak_flops["bf16"] / hardware.peak_flops["bf16"]
    assert hardware.efficiency.attention == pytest.approx(share, rel=1e-2)


def test_no_constant_is_dead() -> None:
    """Each is read by its name in the package, or is held by a GPU's file or a training stack."""
    package = Path(mimokit.__file__).parent / "prediction"
    code = "".join(
        path.read_text(encoding="utf-8")
        for path in package.rglob("*.py")
        if path.name != "constants.py"
    )
    in_files = ("matrix", "memory", "links", "network", "kernel", "attention")
    held = {name for stack in IN_STACKS.values() for name in stack.values()}
    for name in CONSTANTS:
        read = f'"{name}"' in code or name in held or name.split()[0] in in_files
        assert read or name in ("narrow 8", "narrow 4"), name  # in the GPUs' files


@rows("name", *IN_STACKS)
def test_training_stacks_hold_the_fitted_constants(name: str) -> None:
    shipped, fitted = vars(load_software(name)), vars(software_with(FOUND)(name))
    for attribute in IN_STACKS[name]:
        assert shipped[attribute] == pytest.approx(fitted[attribute], rel=1e-2)


def test_the_page_states_every_constant() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert with_table(text) == text, "run python -m benchmarks.prediction.page"
