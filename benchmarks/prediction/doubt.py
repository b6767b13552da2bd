"""Which rows stay inside the band that predictions state, and which rows cannot be as printed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from benchmarks.prediction.rows import Measured
from mimokit.prediction.band import band_of
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.memory import stage_memory, total_bytes
from mimokit.prediction.step_time import System, load_software
from mimokit.prediction.step_time.recipe import recipe_of

APART = 0.2
"""Share by which runs of one layout with one recipe differ that contradict each other."""
TOO_MUCH = 1.1
"""Predicted peak over the GPU's memory from which on a row cannot be as printed; memory is
predicted within 11 %."""


def system_of(row: Measured) -> System:
    """Return the hardware, the stack and the recipe of a row."""
    hardware, has_experts = load_hardware(row.hardware), row.model.net.moe is not None
    recipe = recipe_of(row.recipe, hardware.name, row.software, has_experts)
    return System(hardware, load_software(row.software), row.precision, recipe=recipe)


WRITTEN_BY_LAST = "26.06"
"""First release whose peak is that of all stages. Before, Megatron-Bridge's writers, which the last
rank has alone, wrote the peak of the last stage (its issue 3167 and pull request 3645)."""


def printed_peak_bytes(row: Measured) -> float:
    """Return the predicted bytes of the rank whose peak a row has."""
    last = int(row.sizes.pipeline) - 1
    by_last = row.stack == "bridge" and row.release < WRITTEN_BY_LAST
    return max(_stage_bytes(row, stage) for stage in ((last,) if by_last else (0, last)))


def peak_bytes(row: Measured) -> float:
    """Return the predicted bytes of a run's fullest rank."""
    return max(_stage_bytes(row, stage) for stage in (0, int(row.sizes.pipeline) - 1))


def _stage_bytes(row: Measured, stage: int) -> float:
    parts = stage_memory(
        row.model, row.sizes, row.seq, row.micro_batches, stage,
        frozen=not row.trained, passes_gradient=not row.trained, storage=system_of(row).storage,
    )  # fmt: skip
    return float(total_bytes(parts))


def coverage(rows: Sequence[Measured], errors: NDArray[np.float64]) -> Mapping[str, float]:
    """Return the share of left-out rows of later GPUs inside their band, per kind of model.

    Args:
        errors: predicted over measured, less 1.
    """
    inside: dict[str, list[bool]] = defaultdict(list)
    for row, error in zip(rows, errors, strict=True):
        if not row.hardware.startswith("a100"):
            kind = "dense" if row.model.net.moe is None else "experts"
            band, _ = band_of(row.model, system_of(row))
            # The measured step is inside what was predicted, give or take the band.
            inside[kind].append(abs(1 / (1 + error) - 1) <= band)
    return {kind: float(np.mean(each)) for kind, each in sorted(inside.items())}


def flagged(rows: Sequence[Measured]) -> Mapping[int, str]:
    """Return place of a row -> why it cannot be as printed."""
    reasons = {**dict(_contradicting(rows)), **dict(_slower_when_larger(rows))}
    for place, row in enumerate(rows):
        if row.keeps_less:
            continue
        capacity = load_hardware(row.hardware).memory_bytes
        peak = peak_bytes(row)
        if peak > TOO_MUCH * capacity:
            reasons[place] = (
                f"it needs {peak / 2**30:.0f} GiB, and the GPU has {capacity / 2**30:.0f} GiB"
            )
    return reasons


def _slower_when_larger(rows: Sequence[Measured]) -> Iterator[tuple[int, str]]:
    """Yield runs without a pipeline that larger micro-batches made slower: nothing else differs."""
    groups: dict[object, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        if row.sizes.pipeline == 1:
            layout = str(replace(row.sizes, micro_batch=1))
            key = (row.workload, layout, row.release, row.trained, row.recipe.model_dump_json())
            groups[key].append(place)
    for members in groups.values():
        ordered = sorted(members, key=lambda place: float(rows[place].sizes.micro_batch))
        for smaller, larger in pairwise(ordered):
            before, after = rows[smaller].seconds or np.nan, rows[larger].seconds or np.nan
            samples = rows[smaller].sizes.micro_batch
            if samples < rows[larger].sizes.micro_batch and after > (1 + APART) * before:
                yield larger, f"with {samples} samples per micro-batch it takes {before:.3g} s"


def _contradicting(rows: Sequence[Measured]) -> Iterator[tuple[int, str]]:
    groups: dict[object, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        key = (row.workload, str(row.sizes), row.trained, row.recipe.model_dump_json())
        groups[key].append(place)
    for members in groups.values():
        seconds = {place: rows[place].seconds or np.nan for place in members}
        usual = float(np.exp(np.median(np.log(list(seconds.values())))))
        most = np.log1p(APART) / (2 if len(members) == 2 else 1)  # two are as far from the middle
        for place, each in seconds.items():
            if abs(np.log(each / usual)) > most:
                yield place, f"{len(members)} runs of this layout take {usual:.3g} s at the median"
