"""Fit the constants that are in no data sheet: `python -m benchmarks.prediction.fit`.

Those fitted to all models below are the ones that the hardware files and training stacks hold.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.prediction.fit_tried import TRIED
from benchmarks.prediction.folds import (
    FITTED_MODELS,
    Fold,
    Kind,
    fold_name,
    folds,
)
from benchmarks.prediction.predicted import predict_seconds
from benchmarks.prediction.rows import Measured, read
from mimokit.prediction.hardware import Hardware, load_hardware
from mimokit.prediction.step_time import Software, load_software
from mimokit.prediction.step_time.constants import CONSTANTS, value

FITTED = Path(__file__).with_name("constants.json")
"""What the fit found: of all rows ("all": the shipped ones) and of every fold."""

Bounds = tuple[float, float, float]
"""Where the fit begins, which no row had a say in, and the bounds within which a constant means
what it says."""


def _fitted(old: bool) -> dict[str, Bounds]:
    return {
        name: (math.sqrt(one.low * one.high), one.low, one.high)
        for name, one in CONSTANTS.items()
        if one.fitted and name not in TRIED and name.endswith(("a100", "2021")) == old
    }


A100, LATER = _fitted(old=True), _fitted(old=False)
"""The constants that are fitted: those of A100s, which share none with later GPUs, and others."""

SAME_CHIP = {"h200": "h100", "gb200": "b200", "gb300": "b300"}
"""Hardware -> hardware whose chip it has.

Power limits what a chip sustains, not the peak of the product's sheet: Llama 3 8B takes 1 to 5 %
longer on B200 than on GB200, whose peak is 11 % higher. So the rate is the same, not the share."""

ROUNDS, STEP = 3, 0.02
"""How often seconds are expanded to first order in the logs of the constants, and by which step."""

PRIOR = 0.03
"""Pull towards the start, so that a constant that no row determines keeps its value."""

Constants = Mapping[str, float]


def hardware_with(constants: Constants) -> Callable[[str], Hardware]:
    """Return a loader of hardware with the constants put in; those missing stay as shipped."""
    return lambda name: _with(load_hardware(name), SAME_CHIP.get(name, name), constants)


def _with(hardware: Hardware, chip: str, constants: Constants) -> Hardware:
    efficiency = hardware.efficiency
    narrow: dict[str, float] = {}
    if chip.startswith(("a100", "a6000")):
        base, memory = constants.get("matrix a100"), constants.get("memory a100")
    else:
        sustained = load_hardware(chip).peak_flops["bf16"] / hardware.peak_flops["bf16"]
        base, memory = constants.get(f"matrix {chip}"), constants.get("memory")
        base = None if base is None else base * sustained
        narrow = dict.fromkeys(("fp8", "mxfp8"), value("narrow 8")) | {"nvfp4": value("narrow 4")}
    matrix = dict(efficiency.matrix)
    if base is not None:
        matrix = {kind: base * narrow.get(kind, 1.0) for kind in matrix}
    reached = efficiency.memory if memory is None else memory
    found = replace(efficiency, matrix=matrix, memory=reached)
    return replace(hardware, efficiency=found)


IN_STACKS: Mapping[str, Mapping[str, str]] = {
    "megatron-2021": {
        "host_layer": "host_layer 2021",
        "host_micro_batch": "host_micro_batch 2021",
        "host_softmax": "host_softmax 2021",
    },
    "megatron-bridge": {"expert_passes": "fused passes"},
    "megatron-bridge-2025": {"expert_passes": "unfused passes"},
    "megatron-bridge-dropping": {"expert_passes": "unfused passes"},
    "megatron-core": {"expert_passes": "unfused passes"},
}
"""Training stack -> its attribute -> the constant that it takes."""

SIMUMAX = 0.49
"""Share of the peak that 514 products reach by themselves on the B200s of SimuMax's laboratory
(v1.2, `configs/system/b200_bf16_ceperm.json`): a machine of its own, whose power limit is lower."""


def software_with(constants: Constants) -> Callable[[str], Software]:
    """Return a loader of training stacks with the constants put in."""

    def load(name: str) -> Software:
        changes = {
            attribute: constants[constant]
            for attribute, constant in IN_STACKS[name].items()
            if constant in constants
        }
        software = replace(load_software(name), **changes)  # type: ignore[arg-type]
        if name == "megatron-core":
            share = constants.get("matrix b200", value("matrix b200"))
            return replace(software, matrix_share=min(1.0, SIMUMAX / share))
        return software

    return load


def fit(rows: Sequence[Measured], start: Mapping[str, Bounds]) -> dict[str, float]:
    """Return the constants that fit rows best: least squares of log errors.

    Every model of a table has the same weight per GPU and precision, however many rows it has.
    Outliers are damped, then, from there, hardly count any more: a run that a release made twice as
    slow, or a layout that was printed wrongly, says nothing of the others.
    """
    from scipy.optimize import least_squares

    names = list(start)
    measured = np.array([row.seconds for row in rows], dtype=float)
    group = [(row.table, row.name, row.hardware, row.precision) for row in rows]
    count = Counter(group)
    weight = np.array([1 / np.sqrt(count[one]) for one in group])
    eye = np.eye(len(names))
    begin, low, high = (np.log([start[name][i] for name in names]) for i in range(3))

    def seconds(values: NDArray[np.float64]) -> NDArray[np.float64]:
        constants = dict(zip(names, np.exp(values), strict=True))
        found = predict_seconds(rows, hardware_with(constants), software_with(constants))
        return np.log(found / measured)

    best = begin
    for _ in range(ROUNDS):
        error = seconds(best)
        slopes = np.stack([(seconds(best + step) - error) / STEP for step in STEP * eye], axis=1)

        def residuals(
            values: NDArray[np.float64],
            at: NDArray[np.float64] = best,
            error: NDArray[np.float64] = error,
            slopes: NDArray[np.float64] = slopes,
        ) -> NDArray[np.float64]:
            missed = error + slopes @ (values - at)
            return np.concatenate([weight * missed, PRIOR * (values - begin)])

        best = np.clip(best, low + 1e-9, high - 1e-9)
        for loss in ("soft_l1", "cauchy"):
            found = least_squares(residuals, best, bounds=(low, high), loss=loss, f_scale=0.05)
            best = found.x
    return dict(zip(names, np.exp(best).tolist(), strict=True))


@dataclass(frozen=True)
class Job:
    """One fit: A100s share no constant with later GPUs.

    Attributes:
        left_out: None: nothing.
        old: the constants of A100s, otherwise those of later GPUs.
    """

    left_out: Fold | None
    old: bool

    @property
    def name(self) -> str:
        """Name of its constants."""
        return "all" if self.left_out is None else self.left_out.key

    def rows(self, rows: Sequence[Measured]) -> list[Measured]:
        """Return the rows that are fitted to."""
        return [
            row
            for row in rows
            if row.hardware.startswith("a100") == self.old
            and not (self.left_out and self.left_out.holds(row))
        ]

    def changes(self, rows: Sequence[Measured]) -> bool:
        """Return whether leaving out leaves out any row."""
        whole = Job(None, self.old)
        return len(self.rows(rows)) < len(whole.rows(rows))

    def run(self, rows: Sequence[Measured]) -> tuple[dict[str, float], float]:
        """Return the constants and how many seconds it took."""
        began = time.perf_counter()
        return fit(self.rows(rows), A100 if self.old else LATER), time.perf_counter() - began


def jobs(rows: Sequence[Measured]) -> list[Job]:
    """Return all fits that differ."""
    each = [Job(fold, old) for old in (True, False) for fold in folds(rows)]
    return [Job(None, True), Job(None, False), *(job for job in each if job.changes(rows))]


def fit_all(rows: Sequence[Measured], processes: int = 2) -> dict[str, dict[str, float]]:
    """Return the constants of every fold and of all rows, and print which fit is done."""
    parts: dict[tuple[str, bool], dict[str, float]] = {}
    todo = jobs(rows)
    with ProcessPoolExecutor(processes) as pool:
        running = {pool.submit(job.run, rows): job for job in todo}
        for done, future in enumerate(as_completed(running), start=1):
            job = running[future]
            parts[job.name, job.old], seconds = future.result()
            what = "A100" if job.old else "later GPUs"
            without = "all models" if job.name == "all" else f"all but {job.name}"
            print(f"{done} of {len(todo)}: {what}, {without}, {seconds:.0f} s", flush=True)
    return {
        name: {
            **parts.get((name, True), parts["all", True]),
            **parts.get((name, False), parts["all", False]),
        }
        for name in sorted({job.name for job in todo})
    }


def on_bound(values: Mapping[str, float], near: float = 0.005) -> list[str]:
    """Return a sentence per constant that ends on one of its bounds.

    Args:
        near: distance from a bound over its value that counts as on it.
    """
    sentences = []
    for name, reached in values.items():
        known = CONSTANTS[name]
        for bound in (known.low, known.high):
            if abs(reached / bound - 1) <= near:
                sentences.append(
                    f"{name} ends on its bound {bound:g} {known.unit}: something is missing here, "
                    f"which it would stand for ({known.meaning}; {known.source})."
                )
    return sentences


def main() -> None:
    """Fit the shipped constants and those of every fold, and write them down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the tables")
    parser.add_argument("--out", type=Path, default=FITTED, help="where to write them")
    arguments = parser.parse_args()
    rows, _ = read(arguments.data)
    found = fit_all([row for row in rows if row.seconds and row.name in FITTED_MODELS])
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name, reached in found["all"].items():
        print(f"{name:24s} {reached:.4g}")
    for sentence in on_bound(found["all"]):
        print(sentence)


@functools.cache
def fitted_constants() -> Mapping[str, Constants]:
    """Return the constants of all rows ("all") and of each fold, by its name."""
    constants: dict[str, dict[str, float]] = json.loads(FITTED.read_text(encoding="utf-8"))
    return constants


def bounds_reached() -> Iterator[str]:
    """Yield a sentence per constant that ends on a bound, of all rows and of each fold."""
    every = fitted_constants()
    for name in sorted(every, key=lambda name: (name != "all", name)):
        rows = "All rows" if name == "all" else f"Without {name}"
        shipped = every["all"] if name != "all" else {}
        changed = {each: at for each, at in every[name].items() if shipped.get(each) != at}
        yield from (f"{rows}: {sentence}" for sentence in on_bound(changed))


def constants_for(row: Measured, kind: Kind = "family") -> Constants:
    """Return constants that were fitted without a row's family, generation or release."""
    name = fold_name(kind, row)
    fitted = fitted_constants()
    return fitted["all"] if name is None else fitted.get(Fold(kind, name).key, fitted["all"])


if __name__ == "__main__":
    main()
