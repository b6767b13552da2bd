"""Predict measured rows, many at once: rows that differ in layout only share one evaluation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from benchmarks.prediction.rows import Measured
from mimokit.config.sizes import ParallelSizes
from mimokit.prediction.hardware import Hardware, load_hardware
from mimokit.prediction.step_time import (
    ModuleInput,
    ModuleStep,
    Software,
    System,
    load_software,
    module_step,
)
from mimokit.prediction.step_time.breakdown import PARTS
from mimokit.prediction.step_time.recipe import recipe_of

HardwareOf = Callable[[str], Hardware]
SoftwareOf = Callable[[str], Software]


def predict_seconds(
    rows: Sequence[Measured],
    hardware_of: HardwareOf = load_hardware,
    software_of: SoftwareOf = load_software,
) -> NDArray[np.float64]:
    """Return the predicted step time of every row."""
    seconds = np.zeros(len(rows))
    for members, step in _steps(rows, hardware_of, software_of):
        seconds[members] = step.total
    return seconds


def predict_parts(rows: Sequence[Measured]) -> dict[str, NDArray[np.float64]]:
    """Return part -> the share of it in every row's predicted step."""
    found: dict[str, NDArray[np.float64]] = defaultdict(lambda: np.zeros(len(rows)))
    for members, step in _steps(rows, load_hardware, load_software):
        once = {name: getattr(step, name) for name in ("pipeline", "bubble", "data", "optimizer")}
        for name, part in {**dict(zip(PARTS, step.work.parts, strict=True)), **once}.items():
            found[name][members] = part / step.total
    return dict(found)


def _steps(
    rows: Sequence[Measured], hardware_of: HardwareOf, software_of: SoftwareOf
) -> Iterator[tuple[list[int], ModuleStep]]:
    """Yield which rows are predicted together, and their steps."""
    groups: dict[object, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        facts = (row.model, row.hardware, row.software, row.precision, row.trained)
        groups[(*facts, row.recipe.model_dump_json())].append(index)
    for (model, hardware, software, precision, trained, _), members in groups.items():  # type: ignore[misc]
        chosen = [rows[index] for index in members]
        sizes = stacked([row.sizes for row in chosen])
        work = ModuleInput(
            np.array([row.seq for row in chosen]), sizes.micro_batch, trained, not trained
        )
        known = hardware_of(hardware)
        recipe = recipe_of(chosen[0].recipe, known.name, software, model.net.moe is not None)
        system = System(known, software_of(software), precision, recipe=recipe)
        micro_batches = np.array([row.micro_batches for row in chosen])
        yield members, module_step(model, sizes, work, system, micro_batches)


def stacked(sizes: Sequence[ParallelSizes]) -> ParallelSizes:
    """Return many layouts as one of arrays."""
    return ParallelSizes(
        **{
            field.name: np.array([getattr(one, field.name) for one in sizes])
            for field in fields(ParallelSizes)
        }
    )
