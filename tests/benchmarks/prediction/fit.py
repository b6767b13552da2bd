"""Fit the constants that are in no data sheet: `python -m tests.benchmarks.prediction.fit`.

Those fitted to all models below are the ones that the hardware files and training stacks hold.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from mimokit.prediction.hardware import Hardware, load_hardware
from mimokit.prediction.step_time import Software, load_software
from tests.benchmarks.prediction.predicted import predict_seconds
from tests.benchmarks.prediction.rows import Measured, read

CONSTANTS = Path(__file__).with_name("constants.json")
"""What the fit found: of all rows ("all": the shipped ones) and of every fold."""

Bounds = tuple[float, float, float]
"""Where the fit begins, and the bounds within which a constant means what it says."""

A100: Mapping[str, Bounds] = {
    "matrix a100": (0.7, 0.4, 0.95),
    "memory a100": (0.8, 0.3, 1.0),
    "kernel a100": (5e-6, 1e-7, 3e-5),
    "links a100": (0.67, 0.2, 1.0),
    "network a100": (0.9, 0.2, 1.0),
    "host_layer 2021": (1e-3, 1e-4, 3e-3),
    "host_micro_batch 2021": (2e-3, 1e-4, 8e-3),
    "host_softmax 2021": (3e-4, 1e-5, 1e-3),
}
LATER: Mapping[str, Bounds] = {
    "matrix h100": (0.65, 0.3, 0.95),
    "matrix b200": (0.65, 0.3, 0.95),
    "matrix b300": (0.65, 0.3, 0.95),
    "factor narrow": (0.85, 0.7, 0.9),
    "attention": (0.5, 0.25, 0.8),
    "expert_kernels": (6.0, 2.0, 8.0),
    "expert_passes bridge": (5.0, 4.0, 12.0),
    "expert_passes 2025": (7.0, 4.0, 16.0),
    "matrix_share core": (0.9, 0.5, 1.0),
    "host_collective": (4e-4, 1e-6, 1e-3),
    "host_expert": (4e-3, 1e-4, 8e-3),
    "host_expert dropping": (2e-3, 1e-4, 8e-3),
}
FOLDS: Mapping[str, frozenset[str]] = {
    "llama 70b": frozenset({"LLAMA3_70B"}),
    "llama 8b": frozenset({"LLAMA3_8B"}),
    "llama 70b, 12 layers": frozenset({"llama3-70b-L12"}),
    "qwen3 30b": frozenset({"Qwen3_30B_a3B"}),
    "deepseek v3": frozenset({"DeepSeekV3"}),
    "deepseek v2": frozenset({"deepseekv2-L4"}),
    "gpt of 1024": frozenset(f"GPT {layers} x 1024" for layers in (12, 16, 20, 24)),
    "gpt of 2048": frozenset(f"GPT {layers} x 2048" for layers in (12, 16, 20, 24)),
    "gpt of 3072 and 12288": frozenset({"GPT 30 x 3072", "GPT 96 x 12288"}),
    "gpt of 6144 and 8192": frozenset({"GPT 40 x 6144", "GPT 48 x 8192"}),
}
"""Whole models that are left out together; each is scored with constants fitted without it."""

FITTED_MODELS = frozenset().union(*FOLDS.values())
"""The models that the shipped constants were fitted to; all others are test models as they are."""

SAME_CHIP = {"h200": "h100", "gb200": "b200", "gb300": "b300"}
"""Hardware -> hardware whose chip it has.

Power limits what a chip sustains, not the peak of the product's sheet: Llama 3 8B takes 1 to 5 %
longer on B200 than on GB200, whose peak is 11 % higher. So the rate is the same, not the share."""

NARROW = ("fp8", "mxfp8", "nvfp4")
"""Precisions of 8 and 4 bits, which reach the same share of their peaks; what casting to them takes
is counted on its own."""

PRIOR = 0.03
"""Pull towards the start, so that a constant that no row determines keeps its value."""

Constants = Mapping[str, float]


def hardware_with(constants: Constants) -> Callable[[str], Hardware]:
    """Return a loader of hardware with the constants put in; those missing stay as shipped."""
    return lambda name: _with(load_hardware(name), SAME_CHIP.get(name, name), constants)


def _with(hardware: Hardware, chip: str, constants: Constants) -> Hardware:
    efficiency = hardware.efficiency
    if chip.startswith("a100"):
        keys = ("memory", "kernel", "links", "network")
        changed = {key: constants[f"{key} a100"] for key in keys if f"{key} a100" in constants}
        base, narrow = constants.get("matrix a100"), 1.0
    else:
        sustained = load_hardware(chip).peak_flops["bf16"] / hardware.peak_flops["bf16"]
        share = constants.get("attention")
        changed = {} if share is None else {"attention": share * sustained}
        base, narrow = constants.get(f"matrix {chip}"), constants.get("factor narrow", 1.0)
        base = None if base is None else base * sustained
    matrix = dict(efficiency.matrix)
    if base is not None:
        matrix = {kind: base * (narrow if kind in NARROW else 1.0) for kind in matrix}
    return replace(hardware, efficiency=replace(efficiency, matrix=matrix, **changed))


IN_STACKS: Mapping[str, Mapping[str, str]] = {
    "megatron-2021": {
        "host_layer": "host_layer 2021",
        "host_micro_batch": "host_micro_batch 2021",
        "host_softmax": "host_softmax 2021",
    },
    "megatron-bridge": {
        "host_collective": "host_collective",
        "expert_kernels": "expert_kernels",
        "expert_passes": "expert_passes bridge",
        "host_expert_layer": "host_expert",
    },
    "megatron-bridge-2025": {
        "host_collective": "host_collective",
        "expert_kernels": "expert_kernels",
        "expert_passes": "expert_passes 2025",
        "host_expert_layer": "host_expert",
    },
    "megatron-bridge-dropping": {
        "host_collective": "host_collective",
        "expert_kernels": "expert_kernels",
        "expert_passes": "expert_passes 2025",
        "host_expert_layer": "host_expert dropping",
    },
    "megatron-core": {
        "host_collective": "host_collective",
        "expert_kernels": "expert_kernels",
        "matrix_share": "matrix_share core",
        "expert_passes": "expert_passes 2025",
        "host_expert_layer": "host_expert",
    },
}
"""Training stack -> its attribute -> the constant that it takes."""


def software_with(constants: Constants) -> Callable[[str], Software]:
    """Return a loader of training stacks with the constants put in."""

    def load(name: str) -> Software:
        changes = {
            attribute: constants[constant]
            for attribute, constant in IN_STACKS[name].items()
            if constant in constants
        }
        return replace(load_software(name), **changes)  # type: ignore[arg-type]

    return load


def fit(rows: Sequence[Measured], start: Mapping[str, Bounds]) -> dict[str, float]:
    """Return the constants that fit rows best: least squares of log errors.

    Every model of a table has the same weight per GPU and precision, however many rows it has.
    Outliers are damped, then, from there, hardly count any more: a run that a release made twice as
    slow, or a layout that was printed wrongly, says nothing of the others.
    """
    names = list(start)
    measured = np.array([row.seconds for row in rows], dtype=float)
    group = [(row.table, row.name, row.hardware, row.precision) for row in rows]
    count = Counter(group)
    weight = np.array([1 / np.sqrt(count[one]) for one in group])
    begin, low, high = (np.log([start[name][i] for name in names]) for i in range(3))

    def residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
        constants = dict(zip(names, np.exp(values), strict=True))
        found = predict_seconds(rows, hardware_with(constants), software_with(constants))
        pull = PRIOR * (values - begin)
        return np.concatenate([weight * np.log(found / measured), pull])

    best = begin
    for loss in ("soft_l1", "cauchy"):
        best = least_squares(
            residuals,
            best,
            bounds=(low, high),
            loss=loss,
            f_scale=0.05,
            diff_step=1e-3,
            xtol=1e-4,
            ftol=1e-4,
        ).x
    return dict(zip(names, np.exp(best).tolist(), strict=True))


@dataclass(frozen=True)
class Job:
    """One fit: A100s share no constant with later GPUs.

    Attributes:
        name: of the fold, or "all".
        left_out: models.
        old: the constants of A100s, otherwise those of later GPUs.
    """

    name: str
    left_out: frozenset[str]
    old: bool

    def rows(self, rows: Sequence[Measured]) -> list[Measured]:
        """Return the rows that are fitted to."""
        return [
            row
            for row in rows
            if row.hardware.startswith("a100") == self.old and row.name not in self.left_out
        ]

    def changes(self, rows: Sequence[Measured]) -> bool:
        """Return whether leaving out leaves out any row."""
        whole = Job("all", frozenset(), self.old)
        return len(self.rows(rows)) < len(whole.rows(rows))

    def run(self, rows: Sequence[Measured]) -> tuple[dict[str, float], float]:
        """Return the constants and how many seconds it took."""
        began = time.perf_counter()
        return fit(self.rows(rows), A100 if self.old else LATER), time.perf_counter() - began


def jobs(rows: Sequence[Measured]) -> list[Job]:
    """Return all fits that differ."""
    found: list[Job] = []
    for old in (True, False):
        folds = [Job(name, left_out, old) for name, left_out in FOLDS.items()]
        found += [Job("all", frozenset(), old), *(one for one in folds if one.changes(rows))]
    return found


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
        for name in ("all", *FOLDS)
    }


def main() -> None:
    """Fit the shipped constants and those of every fold, and write them down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the tables")
    parser.add_argument("--out", type=Path, default=CONSTANTS, help="where to write them")
    arguments = parser.parse_args()
    rows, _ = read(arguments.data)
    found = fit_all([row for row in rows if row.seconds and row.name in FITTED_MODELS])
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name, value in found["all"].items():
        print(f"{name:24s} {value:.4g}")


def constants_for(model: str) -> Constants:
    """Return constants that were fitted without a model."""
    found: dict[str, dict[str, float]] = json.loads(CONSTANTS.read_text(encoding="utf-8"))
    for name, left_out in FOLDS.items():
        if model in left_out:
            return found[name]
    return found["all"]


if __name__ == "__main__":
    main()
