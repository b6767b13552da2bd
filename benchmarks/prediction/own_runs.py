"""Error on a family's other runs, by how many of its runs are given.

Nothing else knows the family: the constants are those that were fitted without it.
`python -m benchmarks.prediction.own_runs --data DIR`
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.prediction.fit import constants_for, hardware_with, software_with
from benchmarks.prediction.rows import Measured, read
from mimokit.config.errors import ConfigError
from mimokit.prediction.layout import Layout
from mimokit.prediction.own_runs import OwnRun
from mimokit.prediction.own_runs.fit import fitted
from mimokit.prediction.task import PredictionTask, system_of
from mimokit.prediction.validity import check_layout
from mimokit.prediction.workload import Workload

GIVEN = (0, 1, 3, 10)
"""Runs that are given. `calibrate` refuses a single one, which no other run checks."""
LEAST = 5
"""Runs that a family has at least, so that some are left to predict."""


def own_run(row: Measured) -> OwnRun:
    """Return a published run as if it were a user's."""
    constants = constants_for(row)
    hardware = hardware_with(constants)(row.hardware)
    software = software_with(constants)(row.software)
    workload = Workload(row.seq, row.global_batch, row.precision, recipe=row.recipe)
    system = system_of(hardware, software, workload, row.model)
    layout = Layout("homogeneous", {row.model.name: row.sizes})
    return OwnRun(
        row.label,
        PredictionTask(row.model, layout, workload, system),
        row.seconds or 0.0,
        row.memory_gib,
    )


def families(rows: Sequence[Measured]) -> Iterator[tuple[str, list[Measured]]]:
    """Yield the runs of each model on each GPU with each stack, with those of A100s left out."""
    groups: dict[tuple[str, str, str], list[Measured]] = defaultdict(list)
    for row in rows:
        if row.seconds and not row.hardware.startswith("a100") and row.trained:
            groups[row.name, row.hardware, row.software].append(row)
    for key, members in groups.items():
        if len(members) >= LEAST:
            yield " ".join(key), members


def error(runs: Sequence[OwnRun], given: int) -> float | None:
    """Return the mean error on the runs after the first `given`; None if none are left."""
    rest = runs[given:]
    if not rest:
        return None
    system = runs[0].task.system
    software = system.software
    if given:
        software = fitted(runs[:given], software, system.hardware.name)
    return float(np.mean([abs(run.predicted(software) / run.seconds - 1) for run in rest]))


def errors_of(rows: Sequence[Measured]) -> dict[str, dict[int, float]]:
    """Return family -> runs given -> the mean error on its others, where any are left."""
    errors: dict[str, dict[int, float]] = {}
    for name, members in families(rows):
        runs = [run for run in map(own_run, members) if _can_be_built(run.task)]
        each = {given: error(runs, given) for given in GIVEN}
        errors[name] = {given: mean for given, mean in each.items() if mean is not None}
    return errors


def _can_be_built(task: PredictionTask) -> bool:
    """Return whether `predict` accepts a layout; published ones are not all divisible."""
    try:
        check_layout(task.model, task.layout, task.workload)
    except ConfigError:
        return False
    return True


def means(errors: Mapping[str, Mapping[int, float]]) -> dict[int, float]:
    """Return runs given -> the mean over families, in percent."""
    return {
        given: 100 * float(np.mean(over))
        for given in GIVEN
        if (over := [each[given] for each in errors.values() if given in each])
    }


def main() -> None:
    """Print a line per family, and the mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the tables")
    rows, _ = read(parser.parse_args().data)
    errors = errors_of(rows)
    for name, each in errors.items():
        print(name, ", ".join(f"{given}: {mean:.1%}" for given, mean in each.items()))
    for given, mean in means(errors).items():
        count = sum(given in each for each in errors.values())
        print(f"{given} runs given: mean {mean:.1f} % over {count} families")


if __name__ == "__main__":
    main()
