"""The constants that ship are those that the fit found."""

from __future__ import annotations

import json

import pytest

from mimokit.prediction.hardware import hardware_names, load_hardware
from mimokit.prediction.step_time import load_software
from tests.benchmarks.prediction.fit import CONSTANTS, IN_STACKS, hardware_with, software_with

FOUND = json.loads(CONSTANTS.read_text(encoding="utf-8"))["all"]


@pytest.mark.parametrize("name", hardware_names())
def test_hardware_files_hold_the_fitted_constants(name: str) -> None:
    shipped, fitted = load_hardware(name).efficiency, hardware_with(FOUND)(name).efficiency
    assert dict(shipped.matrix) == pytest.approx(dict(fitted.matrix), rel=1e-2)
    for field in ("attention", "memory", "links", "network", "kernel", "half_width"):
        assert getattr(shipped, field) == pytest.approx(getattr(fitted, field), rel=1e-2)


@pytest.mark.parametrize("name", IN_STACKS)
def test_training_stacks_hold_the_fitted_constants(name: str) -> None:
    shipped, fitted = vars(load_software(name)), vars(software_with(FOUND)(name))
    for attribute in IN_STACKS[name]:
        assert shipped[attribute] == pytest.approx(fitted[attribute], rel=1e-2)
