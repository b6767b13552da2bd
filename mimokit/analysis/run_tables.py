"""The tables of many runs, read side by side and put below each other."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mimokit.analysis.run_folders import RunProblem
from mimokit.analysis.table_file import TableFile, TableProblem, cut_row, read_table
from mimokit.analysis.trace import TRACE_COLUMNS, TraceFileError, read_trace
from mimokit.result_files import RunFile
from mimokit.samples import (
    MODULE_COLUMNS,
    NEEDED_EVALUATION_COLUMNS,
    STEP_COLUMNS,
    TOGETHER_COLUMNS,
    module_column,
    modules_of,
)
from mimokit.units import listed

THREADS = min(8, os.cpu_count() or 1)
"""The reader of pandas works without the lock of Python, so files are read side by side."""


@dataclass(frozen=True)
class RunTable:
    """One table of one run."""

    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    problems: tuple[RunProblem, ...] = ()


def read_iterations(run: str, folder: Path) -> RunTable:
    """Read `metrics.csv` without the columns of modules."""
    read = _read(run, folder / RunFile.METRICS, ("iteration",), TOGETHER_COLUMNS)
    of_modules = [
        name for names in columns_by_module(read.table.columns).values() for name in names
    ]
    return RunTable(read.table.drop(columns=["rank", *of_modules], errors="ignore"), read.problems)


def read_evaluations(run: str, folder: Path) -> RunTable:
    """Read `evaluations.csv`; a run without a test has none, which is correct."""
    file = folder / RunFile.EVALUATIONS
    if not file.is_file():
        return RunTable()
    evaluations = read_table(file, NEEDED_EVALUATION_COLUMNS)
    return RunTable(evaluations.table, _problems(run, file, evaluations.problems))


def check_by_rank(run: str, folder: Path) -> tuple[RunProblem, ...]:
    """Return what is wrong with `metrics_by_rank.csv`, without reading it."""
    file = folder / RunFile.METRICS_BY_RANK
    if not file.is_file():
        if not (folder / RunFile.METRICS).is_file():
            return ()
        sentence = f"The folder {folder} has no {file.name}; its ranks cannot be distinguished."
        return (RunProblem(file, run, sentence),)
    cut = cut_row(file)
    return () if cut is None else _problems(run, file, (cut,))


def read_by_rank(
    folders: Mapping[str, Path],
) -> tuple[pd.DataFrame, pd.DataFrame, tuple[RunProblem, ...]]:
    """Read `metrics_by_rank.csv` of all runs: rows per rank, rows per rank and module."""
    with ThreadPoolExecutor(THREADS) as pool:
        parts = list(pool.map(_by_rank, folders, folders.values()))
    steps = concatenated({run: part[0].table for run, part in zip(folders, parts, strict=True)})
    names = list(dict.fromkeys(module for part in parts for module in part[1]))
    pieces = [
        (run, names.index(module), table)
        for run, part in zip(folders, parts, strict=True)
        for module, table in part[1].items()
    ]
    modules = _concatenated([table for _, _, table in pieces], MODULE_COLUMNS)
    lengths = [len(table) for _, _, table in pieces]
    modules.insert(0, "run", _repeated([run for run, _, _ in pieces], lengths, list(folders)))
    modules.insert(3, "module", _repeated([names[place] for _, place, _ in pieces], lengths, names))
    return steps, modules, tuple(problem for part in parts for problem in part[0].problems)


def _by_rank(run: str, folder: Path) -> tuple[RunTable, dict[str, pd.DataFrame]]:
    file = folder / RunFile.METRICS_BY_RANK
    if not file.is_file():
        return RunTable(problems=check_by_rank(run, folder)), {}
    read = _read(run, file, ("rank", "iteration"), ("rank", *TOGETHER_COLUMNS))
    table = read.table
    if table.empty:
        return read, {}
    by_module = columns_by_module(table.columns)
    modules = {}
    for module, names in by_module.items():
        piece = table[["rank", "iteration", *names]].rename(columns=names)
        modules[module] = _on_its_ranks(piece)
    of_modules = [name for names in by_module.values() for name in names]
    return RunTable(table.drop(columns=of_modules), read.problems), modules


def columns_by_module(columns: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return module -> its columns in a step table -> their names without the module."""
    known = list(columns)
    by_module: dict[str, dict[str, str]] = {name: {} for name in modules_of(known)}
    by_length = sorted(by_module, key=len, reverse=True)
    for column in known:
        for module in by_length:
            start = module_column(module, "")
            if column.startswith(start) and column not in STEP_COLUMNS:
                by_module[module][column] = column.removeprefix(start)
                break
    return by_module


def _on_its_ranks(table: pd.DataFrame) -> pd.DataFrame:
    times = [name for name in table.columns if name.endswith("_time")]
    return table[(table[times] > 0).any(axis=1)]


def read_events(folders: Mapping[str, Path]) -> tuple[pd.DataFrame, tuple[RunProblem, ...]]:
    """Read the traces of all runs that have one."""
    tables: dict[str, pd.DataFrame] = {}
    problems = []
    for run, folder in folders.items():
        file = folder / RunFile.TRACE
        if file.is_file():
            try:
                tables[run] = read_trace(file)
            except TraceFileError as error:
                problems.append(RunProblem(file, run, str(error)))
    return concatenated(tables, TRACE_COLUMNS, list(folders)), tuple(problems)


def concatenated(
    tables: Mapping[str, pd.DataFrame], first: Sequence[str] = (), runs: Sequence[str] | None = None
) -> pd.DataFrame:
    """Return tables below each other, with the name of the run as a categorical first column."""
    table = _concatenated(list(tables.values()), first)
    lengths = [len(rows) for rows in tables.values()]
    table.insert(0, "run", _repeated(list(tables), lengths, list(runs or tables)))
    return table


def _concatenated(tables: Sequence[pd.DataFrame], first: Sequence[str]) -> pd.DataFrame:
    filled = [table for table in tables if len(table)]
    keys = [name for name in ("iteration", "rank") if any(name in table for table in filled)]
    if not filled:
        return pd.DataFrame(columns=["iteration", "rank", *first])
    order = dict.fromkeys([*keys, *first, *(name for table in filled for name in table.columns)])
    whole = pd.concat(filled, ignore_index=True)
    return whole[[name for name in order if name in whole.columns]]


def _repeated(values: Sequence[str], lengths: Sequence[int], among: list[str]) -> pd.Series[Any]:
    places = {name: place for place, name in enumerate(among)}
    codes = np.repeat(np.array([places[value] for value in values], dtype=np.int32), lengths)
    kind = pd.CategoricalDtype(among)
    return pd.Series(pd.Categorical.from_codes(codes, dtype=kind))


def _read(run: str, file: Path, keys: tuple[str, ...], expected: Sequence[str]) -> RunTable:
    if not file.is_file():
        sentence = f"The folder {file.parent} has no {file.name}; no iteration was measured."
        return RunTable(problems=(RunProblem(file, run, sentence),))
    content: TableFile = read_table(file, (), keys, texts=())
    problems = list(content.problems)
    absent = [name for name in expected if name not in content.columns]
    lacking = [name for name in keys if name in absent]
    if content.columns and lacking:
        sentence = f"The file {file} has no column {listed(lacking)}; no row of it can be used."
        problems.append(TableProblem(sentence))
    elif content.columns and absent:
        sentence = f"The file {file} has no columns {listed(absent)}; an earlier version wrote it."
        problems.append(TableProblem(sentence))
    return RunTable(content.table, _problems(run, file, problems))


def _problems(run: str, file: Path, problems: Iterable[TableProblem]) -> tuple[RunProblem, ...]:
    return tuple(RunProblem(file, run, _with_rows(problem)) for problem in problems)


def _with_rows(problem: TableProblem) -> str:
    if not problem.rows:
        return problem.sentence
    rows = f"{problem.rows:,} row{' is' if problem.rows == 1 else 's are'}"
    return f"{problem.sentence} {rows} left out."
