"""Many runs as tidy pandas tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mimokit.analysis import run_info, run_tables
from mimokit.analysis.memory_rows import read_held
from mimokit.analysis.run_folders import Paths, RunProblem, find_runs
from mimokit.analysis.run_tables import RunTable, read_evaluations, read_iterations
from mimokit.analysis.table_file import records
from mimokit.config import ExperimentConfig
from mimokit.planning.report import PlannedLayout
from mimokit.tables import Report, Section
from mimokit.units import counted, seconds_text


@dataclass(frozen=True, repr=False)
class Runs(Report):
    """The results of many runs.

    `ranks`, `modules` and `events` are read when they are first used: they are a hundred times as
    large as the other tables, and many questions need none of them. `runs["name"]` and
    `runs.only(names)` read the files of these runs alone.

    Attributes:
        runs: a row per run: name, status, mode, ranks, layout, duration, versions, error.
            `RUN_COLUMNS` lists the columns; those of modules follow.
        iterations: a row per run and iteration, all ranks reduced to one: the columns of
            `metrics.csv` except for those of modules.
        found: what was wrong with the files that were read at once; see `problems`.
    """

    runs: pd.DataFrame
    iterations: pd.DataFrame
    evaluations: pd.DataFrame
    folders: dict[str, Path]
    found: tuple[RunProblem, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of the runs, in the order of the table."""
        return list(self.folders)

    @property
    def ranks(self) -> pd.DataFrame:
        """A row per run, iteration and rank: the columns of `metrics_by_rank.csv` except for those
        of modules. Times are seconds, memory is bytes."""
        return self._by_rank[0]

    @property
    def modules(self) -> pd.DataFrame:
        """A row per run, iteration, rank and module on that rank, with the columns of
        `samples.MODULE_COLUMNS` that any run has."""
        return self._by_rank[1]

    @cached_property
    def _by_rank(self) -> tuple[pd.DataFrame, pd.DataFrame, tuple[RunProblem, ...]]:
        return run_tables.read_by_rank(self.folders)

    @cached_property
    def held(self) -> pd.DataFrame:
        """A row per run, module and part of its memory, on the rank with the most of the module:
        the bytes that were measured in the first iteration, and those that were predicted."""
        return read_held(self.folders)

    @property
    def events(self) -> pd.DataFrame:
        """A row per traced step: run and `TRACE_COLUMNS`; empty if no run was traced."""
        return self._events[0]

    @cached_property
    def _events(self) -> tuple[pd.DataFrame, tuple[RunProblem, ...]]:
        return run_tables.read_events(self.folders)

    @property
    def problems(self) -> tuple[RunProblem, ...]:
        """What is missing or broken in the files that were read so far, in order.

        A half-written last row of a table is known from the start; other faults of
        `metrics_by_rank.csv` and `trace.json` once `ranks`, `modules` or `events` were used.
        """
        later = [self.__dict__[name][-1] for name in ("_by_rank", "_events") if self._read(name)]
        return tuple(dict.fromkeys([*self.found, *(problem for part in later for problem in part)]))

    def _read(self, name: str) -> bool:
        return name in self.__dict__

    def __len__(self) -> int:
        return len(self.folders)

    def __iter__(self) -> Iterator[str]:
        return iter(self.folders)

    def __getitem__(self, name: str) -> Runs:
        return self.only([name])

    def only(self, names: Sequence[str]) -> Runs:
        """Return some of the runs, in the given order; raises ValueError if one was not loaded."""
        for name in names:
            if name not in self.folders:
                verb = "are" if len(self) > 1 else "is"
                raise ValueError(
                    f"Run '{name}': no such run was loaded; there {verb} {_shortened(self.names)}."
                )
        rows = self.runs.set_index("run", drop=False).loc[list(names)]
        chosen = Runs(
            runs=rows.reset_index(drop=True),
            iterations=_of_runs(self.iterations, names),
            evaluations=_of_runs(self.evaluations, names),
            folders={name: self.folders[name] for name in names},
            found=tuple(problem for problem in self.found if problem.run in names),
        )
        for read in filter(self._read, ("_by_rank", "_events")):
            *tables, problems = self.__dict__[read]
            of_names = tuple(problem for problem in problems if problem.run in names)
            chosen.__dict__[read] = (*(_of_runs(table, names) for table in tables), of_names)
        return chosen

    def config(self, name: str) -> ExperimentConfig:
        """Return the finalized config of a run; raises ConfigError if it cannot be read."""
        return run_info.config_of(self.folders[name])

    def plan(self, name: str) -> PlannedLayout:
        """Return the plan of a run's layout; raises ConfigError if its config cannot be read."""
        return run_info.plan_of(self.folders[name])

    def memory_limit(self, name: str) -> float | None:
        """Return the bytes that a rank of a run may use; None if they are not known.

        On a GPU that mimokit knows they are its memory; on the CPUs of one host an even share of
        the host's.
        """
        (row,) = records(_of_runs(self.runs, [name]))
        return run_info.memory_limit(row)

    def first_settled(self) -> dict[str, int]:
        """Return run -> its first iteration after the warm-up.

        The iterations that the run itself has marked are the warm-up, or else the first
        `warmup_iterations`. The last iteration is never warm-up.
        """
        return {
            name: numbers[min(count, len(numbers) - 1)] for name, count, numbers in self._warmups
        }

    def unfinished(self) -> dict[str, str]:
        """Return run -> its status, of the runs that are not known to have come to their end."""
        rows = records(self.runs)
        return {row["run"]: row["status"] for row in rows if row["status"] not in FINISHED}

    def ended_in_warmup(self) -> frozenset[str]:
        """Return the runs that measured nothing but warm-up, and did not complete."""
        unfinished = self.unfinished()
        return frozenset(
            name
            for name, count, numbers in self._warmups
            if count >= len(numbers) and name in unfinished
        )

    @cached_property
    def _warmups(self) -> tuple[tuple[str, int, list[int]], ...]:
        return tuple(self._each_warmup())

    def _each_warmup(self) -> Iterator[tuple[str, int, list[int]]]:
        rows = {row["run"]: row for row in records(self.runs)}
        for name, steps in self.iterations.groupby("run", observed=True):
            marked = steps.get("warmup", pd.Series(dtype=float)).dropna()
            count = int((marked > 0).sum()) if len(marked) else run_info.warmup_of(rows[str(name)])
            yield str(name), count, [int(number) for number in sorted(steps["iteration"])]

    def settled(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of one of the tables that are after the warm-up of their run."""
        first = self.first_settled()
        runs = table["run"].astype("category").cat
        starts = np.array([first.get(name, 0) for name in runs.categories], dtype=np.int64)
        return table[table["iteration"].to_numpy() >= starts[runs.codes]] if len(table) else table

    def endings(self) -> list[str]:
        """Return a sentence for every run that did not complete: where it ended, and why."""
        return [sentence for row in records(self.runs) for sentence in _ending(row)]

    def unhealthy(self) -> list[str]:
        """Return a sentence for every run whose ranks held what they must not: what was wrong."""
        return [
            run_info.unhealthy(row["run"], row["health"])
            for row in records(self.runs)
            if isinstance(row["health"], str) and row["health"]
        ]

    def summary(self) -> list[tuple[str, ...]]:
        """Return the table of runs as texts, under `SUMMARY`."""
        return [_summary(row) for row in records(self.runs)]

    @property
    def _heading(self) -> str:
        return counted(len(self), "run")

    def __repr__(self) -> str:
        return f"Runs({self._heading}: {_shortened(self.names)})"

    def section(self) -> Section:
        """Return a row per run, and below them what is wrong with runs and files."""
        said = [*self.endings(), *self.unhealthy(), *map(str, self.problems)]
        return Section(self._heading, SUMMARY, self.summary(), said)


FINISHED = ("completed", "unknown")
"""Statuses of runs that have come to their end, as far as is known."""
SUMMARY = ("run", "status", "layout", "ranks", "iterations", "time")
"""Headings of `Runs.summary`."""


def load_runs(paths: Paths) -> Runs:
    """Load the results of many runs.

    What is missing or broken in one run does not keep the others from being loaded: it is in
    `problems`, as sentences. A half-written last row, which a killed client leaves, is left out.

    Args:
        paths: folders of runs, of sweeps (`D/run_<timestamp>`), of results (`D`), or globs; one or
            several.

    Raises:
        RunFolderError: the paths have no run.
    """
    listed = find_runs(paths)
    problems = list(listed.problems)
    with ThreadPoolExecutor(run_tables.THREADS) as pool:
        parts = list(pool.map(_read, listed.folders, listed.folders.values()))
    rows = []
    for (name, folder), (steps, _, wrong) in zip(listed.folders.items(), parts, strict=True):
        sentences: list[str] = []
        rows.append(run_info.run_row(name, folder, len(steps.table), sentences))
        if rows[-1]["status"] != run_info.REFUSED:  # which has an error.json alone
            problems += wrong
            problems += [RunProblem(folder, name, sentence) for sentence in sentences]
    return Runs(
        runs=pd.DataFrame(rows, columns=[*run_info.RUN_COLUMNS, *run_info.module_columns(rows)]),
        iterations=_stacked(listed.folders, [steps for steps, _, _ in parts]),
        evaluations=_stacked(listed.folders, [evaluations for _, evaluations, _ in parts]),
        folders=dict(listed.folders),
        found=tuple(problems),
    )


def _read(name: str, folder: Path) -> tuple[RunTable, RunTable, tuple[RunProblem, ...]]:
    steps, evaluations = read_iterations(name, folder), read_evaluations(name, folder)
    problems = (*steps.problems, *evaluations.problems, *run_tables.check_by_rank(name, folder))
    return steps, evaluations, problems


def _stacked(folders: Mapping[str, Path], parts: Sequence[RunTable]) -> pd.DataFrame:
    return run_tables.concatenated(
        {name: part.table for name, part in zip(folders, parts, strict=True)}
    )


def _of_runs(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    chosen = table[table["run"].isin(names)].reset_index(drop=True)
    if isinstance(chosen["run"].dtype, pd.CategoricalDtype):
        chosen["run"] = chosen["run"].cat.set_categories(list(names))
    return chosen


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (", …" if len(names) > 12 else "")


def _ending(row: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(row["error"], str):
        where = "".join(
            f" {word} {row[column]:.0f}"
            for word, column in (("on rank", "error_rank"), ("in step", "error_step"))
            if not pd.isna(row[column])
        )
        verb = "was refused" if row["status"] == run_info.REFUSED else "failed"
        reason = row["error"].partition("\n")[0]
        yield f"The run {row['run']} {verb}{where}: {reason}"
    elif row["status"] not in FINISHED:
        count = row["iterations"]
        many = counted(count, "iteration")
        yield f"The run {row['run']} is {row['status']}; it measured {many}."


def _summary(row: Mapping[str, Any]) -> tuple[str, ...]:
    def text(name: str) -> str:
        value = row.get(name)
        return "" if value is None or value != value else str(value)

    ranks, seconds = row.get("world_size"), row.get("seconds")
    return (
        text("run"),
        text("status"),
        text("layout"),
        f"{ranks:.0f}" if isinstance(ranks, int | float) and ranks == ranks else "",
        text("iterations"),
        seconds_text(seconds) if isinstance(seconds, int | float) and seconds == seconds else "",
    )
