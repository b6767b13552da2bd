"""Folders of runs: finds them below paths and globs, names them, and reads one that is whole."""

import glob
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from mimokit.analysis.table_file import read_table
from mimokit.config.text_file import read_json
from mimokit.result_files import RunFile, SweepFile
from mimokit.samples import (
    EVALUATION_COLUMNS,
    NEEDED_EVALUATION_COLUMNS,
    NEEDED_STEP_COLUMNS,
    STEP_COLUMNS,
    TEXT_COLUMNS,
)
from mimokit.sentence_error import SentenceError

KEYS = ("iteration", "rank", "step", "node")
"""The columns that say which row is which, where a table has them."""


class RunFolderError(SentenceError, ValueError):
    """A results folder that cannot be read; the message is one sentence."""


@dataclass(frozen=True)
class RunTables:
    """The content of a results folder.

    Attributes:
        info: the content of `experiment_info.json`; empty if the run wrote none.
        metrics: one row per iteration.
        metrics_by_rank: one row per iteration and rank; empty without that file.
        evaluations: one row per evaluation; empty without that file.
    """

    directory: Path
    info: Mapping[str, Any]
    metrics: pd.DataFrame
    metrics_by_rank: pd.DataFrame
    evaluations: pd.DataFrame

    @property
    def config_file(self) -> Path:
        """The finalized config of the run, as YAML."""
        return self.directory / RunFile.CONFIG


def read_run(directory: str | Path) -> RunTables:
    """Read the results folder of a run.

    Raises:
        RunFolderError: the folder or its `metrics.csv` is missing, or a file is broken.
    """
    folder = Path(directory)
    if not os.path.isdir(folder):
        raise RunFolderError(f"There is no results folder at {folder}.")
    metrics_file = folder / RunFile.METRICS
    if not metrics_file.is_file():
        raise RunFolderError(
            f"The folder {folder} has no metrics.csv, so it is not the folder of a run "
            "or the run ended before its first iteration."
        )
    return RunTables(
        directory=folder,
        info=read_object(folder / RunFile.INFO),
        metrics=read_sound_table(metrics_file, NEEDED_STEP_COLUMNS, ()),
        metrics_by_rank=read_sound_table(
            folder / RunFile.METRICS_BY_RANK, ("rank", *NEEDED_STEP_COLUMNS), STEP_COLUMNS
        ),
        evaluations=read_sound_table(
            folder / RunFile.EVALUATIONS, NEEDED_EVALUATION_COLUMNS, EVALUATION_COLUMNS
        ),
    )


def read_object(file: Path) -> Mapping[str, Any]:
    """Return the JSON object of a file, empty without it; raises RunFolderError of another."""
    if not file.is_file():
        return {}
    try:
        content = read_json(file)
    except (ValueError, OSError) as error:
        raise RunFolderError(f"The file {file} is not valid JSON ({error}).") from None
    if not isinstance(content, dict):
        raise RunFolderError(f"The file {file} must contain one JSON object.")
    return content


def read_sound_table(
    file: Path,
    needed: Sequence[str],
    columns: Sequence[str],
    texts: Collection[str] = TEXT_COLUMNS,
) -> pd.DataFrame:
    """Return a table of which nothing is wrong; an empty one without the file."""
    if not file.is_file():
        return pd.DataFrame(columns=list(columns))
    content = read_table(file, needed, [name for name in KEYS if name in needed], texts)
    if content.problems:
        raise RunFolderError(content.problems[0].sentence)
    return content.table


Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""One path or glob, or several."""

_MARKS = (RunFile.INFO, RunFile.METRICS, RunFile.METRICS_BY_RANK, RunFile.ERROR)
"""A folder with one of these files is that of a run."""
_INSIDE_A_RUN = ("earlier", "profile")
_DEEPEST = 4
"""Folders between a given path and a run: results, a sweep, a run, and one to spare."""


@dataclass(frozen=True)
class RunProblem:
    """Something that is wrong with what was read, or missing."""

    path: Path
    run: str
    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True)
class Found:
    """Folders of runs."""

    folders: dict[str, Path]
    problems: tuple[RunProblem, ...]


def find_runs(paths: Paths) -> Found:
    """Return the runs below some paths: folders of runs, of sweeps, of results, or globs of them.

    A run has the name of its folder. Runs of one name are distinguished by the folders above them,
    as in `run_20260102_030405/colocated`. Runs that were moved into `earlier/` are not taken,
    unless a path names them.
    """
    listed = _given(paths)
    folders: dict[Path, None] = {}
    problems: list[RunProblem] = []
    for path in listed:
        if not os.path.exists(path):
            problems.append(_problem(path, f"Folder {path} does not exist."))
            continue
        below = list(_runs_below(path, _DEEPEST))
        folders.update(dict.fromkeys(below))
        if not below and os.path.isdir(path):
            problems.append(_problem(path, f"The folder {path} holds no run."))
        elif not os.path.isdir(path):
            problems.append(_problem(path, f"{path} is a file; give the folder of a run."))
        problems += _without_runs(path, below)
    for sweep in dict.fromkeys(parent for folder in folders for parent in (folder, folder.parent)):
        problems += _not_run(sweep, folders)
    if not folders:
        raise RunFolderError(_nothing(listed, problems))
    return Found(_named(list(folders)), tuple(problems))


def _nothing(listed: Sequence[Path], problems: Sequence[RunProblem]) -> str:
    if len(listed) == 1 and len(problems) == 1 and not os.path.isdir(listed[0]):
        return problems[0].sentence
    where = ", ".join(map(str, listed)) or "no path"
    return (
        f"{where} has no run: the folder of a run has {RunFile.METRICS}, {RunFile.INFO} or "
        f"{RunFile.ERROR}; `mimokit run FILE --results-dir DIR` makes one."
    )


def _problem(path: Path, sentence: str) -> RunProblem:
    return RunProblem(path, "", sentence)


def _given(paths: Paths) -> list[Path]:
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    matched: dict[Path, None] = {}
    for pattern in (os.fspath(path) for path in listed):
        matches = [pattern] if os.path.exists(pattern) or not glob.has_magic(pattern) else []
        matched.update(dict.fromkeys(map(Path, matches or sorted(glob.glob(pattern)) or [pattern])))
    return list(matched)


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run."""
    return any((folder / name).is_file() for name in _MARKS)


def _runs_below(path: Path, depth: int) -> Iterator[Path]:
    if not os.path.isdir(path):
        return
    if is_run(path):
        yield path
    elif depth:
        for folder in _folders(path):
            yield from _runs_below(folder, depth - 1)


def _folders(path: Path) -> list[Path]:
    try:
        inside = sorted(folder for folder in path.iterdir() if os.path.isdir(folder))
    except OSError:
        return []
    return [
        folder
        for folder in inside
        if not folder.name.startswith(".")
        and folder.name not in _INSIDE_A_RUN
        and folder.resolve() not in (path.resolve(), *path.resolve().parents)
    ]


def _without_runs(path: Path, runs: Sequence[Path]) -> Iterator[RunProblem]:
    if not os.path.isdir(path) or not runs or path in runs:
        return
    above = {parent for run in runs for parent in run.parents}
    for place in dict.fromkeys([path, *(run.parent for run in runs)]):
        for folder in _folders(place):
            if folder not in above and folder not in runs:
                yield _problem(folder, f"The folder {folder} holds no run; it is left out.")


def _not_run(sweep: Path, folders: Collection[Path]) -> Iterator[RunProblem]:
    file = sweep / SweepFile.SWEEP
    if not file.is_file():
        return
    known = {folder.resolve() for folder in folders}
    try:
        for entry in read_json(file)["experiments"]:
            folder = sweep / str(entry["directory"])
            if not is_run(folder) and folder.resolve() not in known:
                why = str(entry["status"])
                if message := str(entry["message"]).removesuffix("."):
                    why = f"{why} ({message})"
                sentence = f"The experiment {entry['name']} of {sweep} has no results: {why}."
                yield _problem(folder, sentence)
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield _problem(file, f"The file {file} is not the record of a sweep ({error!r}).")


def _named(folders: Sequence[Path]) -> dict[str, Path]:
    resolved = {folder: folder.resolve() for folder in folders}
    deepest = max(len(path.parts) for path in resolved.values())
    names = {folder: path.name or str(path) for folder, path in resolved.items()}
    for parts in range(2, deepest + 1):
        uses = Counter(names.values())
        if max(uses.values()) == 1:
            break
        names = {
            folder: name if uses[name] == 1 else "/".join(resolved[folder].parts[-parts:])
            for folder, name in names.items()
        }
    return {as_text(name): folder for folder, name in names.items()}


def as_text(name: str) -> str:
    """Return a name whose half characters are escaped: tables on pyarrow take no others."""
    return name.encode("utf-8", "backslashreplace").decode()
