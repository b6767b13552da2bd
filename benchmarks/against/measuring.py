"""Runs cases in trees in turn, and reads what they spent."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CPU, CLOCK, MEGABYTES = "CPU s", "clock s", "MB"

Figures = Mapping[tuple[str, str], tuple[float, ...]]
"""(what, unit) -> its figure in each repetition."""


@dataclass(frozen=True)
class Case:
    """What is run in both trees.

    Attributes:
        arguments: of Python; the folder is the tree, whose packages are imported.
        repeats: how often, in turn.
        prints: whether it prints its figures, as JSON: what -> unit -> number; else the whole
            command is measured.
    """

    name: str
    arguments: Sequence[str]
    repeats: int = 5
    prints: bool = False


def prepare(tree: Path) -> None:
    """Compile a tree, so that no case does."""
    _run(tree, ["-m", "compileall", "-q", "mimokit", "widgets", "benchmarks"])


def in_turn(cases: Sequence[Case], trees: Mapping[str, Path]) -> dict[str, Figures]:
    """Measure all cases; the order of the trees alternates."""
    found: dict[str, dict[tuple[str, str], list[float]]] = {name: {} for name in trees}
    for case in cases:
        print(case.name, file=sys.stderr, flush=True)
        for number in range(case.repeats):
            names = list(trees) if number % 2 == 0 else list(reversed(trees))
            for name in names:
                for what, figure in _measured(case, trees[name]).items():
                    found[name].setdefault(what, []).append(figure)
    return {
        name: {what: tuple(numbers) for what, numbers in figures.items()}
        for name, figures in found.items()
    }


def middle(figures: Figures, what: tuple[str, str]) -> float:
    """Return the median of the repetitions."""
    return statistics.median(figures[what])


def _measured(case: Case, tree: Path) -> dict[tuple[str, str], float]:
    before, began = _spent(), time.perf_counter()
    told = _run(tree, case.arguments)
    seconds, spent = time.perf_counter() - began, _spent() - before
    if not case.prints:
        return {(case.name, CPU): spent, (case.name, CLOCK): seconds}
    rows = json.loads(told.splitlines()[-1])
    return {(what, unit): figure for what, units in rows.items() for unit, figure in units.items()}


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(tree: Path, arguments: Sequence[str]) -> str:
    environment = {
        **{key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"},
        "PYTHONPATH": os.pathsep.join([str(tree), str(tree / "widgets")]),
    }
    command = [sys.executable, "-P", *arguments]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} failed in {tree}:\n{done.stderr[-2000:]}")
    return done.stdout
