"""Predictions that remember modules say what fresh ones say, whatever was predicted before."""

from dataclasses import replace

import numpy as np
import pytest

from mimokit.config.sizes import ParallelSizes
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.memo import remembered
from mimokit.prediction.step_time import System, load_software
from mimokit.prediction.step_time.pipeline import module_step
from mimokit.prediction.step_time.stage import ModuleInput
from tests.layout_search.small import language
from tests.rows import rows


def test_one_layout_is_computed_once_and_arrays_each_time() -> None:
    calls = []

    @remembered
    def doubled(sizes: ParallelSizes) -> object:
        calls.append(sizes)
        return 2 * sizes.tensor

    assert [doubled(ParallelSizes(4)), doubled(ParallelSizes(4))] == [8, 8]
    many = ParallelSizes(np.array([1, 2]))
    assert [list(doubled(many)), list(doubled(many))] == [[2, 4], [2, 4]]  # type: ignore[call-overload]
    assert len(calls) == 3


@rows("change", {"memory_bandwidth": 1e12}, {"peak_flops": {"bf16": 5e14}}, {"name": "another"})
def test_hardware_that_differs_anywhere_is_another(change: dict[str, object]) -> None:
    system = System(load_hardware("h100"), load_software("megatron-bridge"))
    other = replace(system, hardware=replace(system.hardware, **change))  # type: ignore[arg-type]
    assert system == replace(system)
    assert hash(system) == hash(replace(system))
    assert system != other
    given = language(), ParallelSizes(2, 2, data=4), ModuleInput(2048, 1)
    first, second = (module_step(*given, one, 8) for one in (system, other))
    assert (first.total != second.total) == ("name" not in change)
    assert module_step(*given, system, 8) is first


def test_a_sum_of_parts_is_that_of_each() -> None:
    given = language(), ParallelSizes(2, 2, data=4), ModuleInput(2048, 1)
    system = System(load_hardware("h100"), load_software("megatron-bridge"))
    work = module_step(*given, system, 8).work
    assert work.total == pytest.approx(sum(map(float, work.parts)))
    assert (work + work).total == pytest.approx(2 * work.total)
    assert work.times(3).matrix == 3 * work.matrix
