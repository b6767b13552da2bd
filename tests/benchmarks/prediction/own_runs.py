"""Error on a family's other runs, by how many of its runs are given.

`python -m tests.benchmarks.prediction.own_runs --data DIR`
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.layout import Layout
from mimokit.prediction.own_runs import OwnRun, adjust
from mimokit.prediction.step_time import load_software
from mimokit.prediction.task import PredictionTask, system_of
from mimokit.prediction.workload import Workload
from tests.benchmarks.prediction.rows import Measured, read

GIVEN = (0, 3, 10)
LEAST = 5
"""Runs that a family has at least, so that some are left to predict."""


def own_run(row: Measured) -> OwnRun:
    """Return a published run as if it were a user's."""
    hardware, software = load_hardware(row.hardware), load_software(row.software)
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


def error(members: Sequence[Measured], given: int) -> float | None:
    """Return the mean error on the runs after the first `given` ones; None if none are left."""
    rest = members[given:]
    if not rest:
        return None
    software = load_software(members[0].software)
    if given:
        software = adjust([own_run(row) for row in members[:given]], software).software
    errors = [own_run(row).predicted(software) / (row.seconds or 1.0) - 1 for row in rest]
    return float(np.mean(np.abs(errors)))


def main() -> None:
    """Print a line per family, and the mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the tables")
    rows, _ = read(parser.parse_args().data)
    found: dict[int, list[float]] = {given: [] for given in GIVEN}
    for name, members in families(rows):
        errors = {given: error(members, given) for given in GIVEN}
        shown = [f"{given}: {one:.1%}" for given, one in errors.items() if one is not None]
        print(f"{name} ({len(members)} runs) {', '.join(shown)}")
        for given, one in errors.items():
            if one is not None:
                found[given].append(one)
    for given, values in found.items():
        print(f"{given} runs given: mean {np.mean(values):.1%} over {len(values)} families")


if __name__ == "__main__":
    main()
