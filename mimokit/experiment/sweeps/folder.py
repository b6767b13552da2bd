"""The folder of a sweep: what was to run, what became of it, and one table of all experiments.

sweep.json             the experiments with their configs and states
all_experiments.csv    the rows of every metrics.csv, with the experiment in front
NAME/                  the results folder of experiment NAME
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from mimokit.config import ConfigError, ExperimentConfig, Problem
from mimokit.config.text_file import open_regular, read_json, reason_of
from mimokit.config_files import config_from_mapping
from mimokit.config_files.implications import fill_in
from mimokit.experiment.results.folder import (
    DEFAULT_RESULTS,
    Folder,
    name_problem,
    new_root,
    unwritable,
)
from mimokit.experiment.results.info import Status, error_record
from mimokit.experiment.sweeps.experiments import Experiment
from mimokit.experiment.sweeps.records import ExperimentRecord
from mimokit.planning.digests import is_as_sealed, sealed
from mimokit.result_files import (
    EXPERIMENT_COLUMN,
    RunFile,
    SweepFile,
    whole_file,
    without_secrets_in,
    write_json,
)
from mimokit.samples import STEP_COLUMNS
from mimokit.units import shown

_OUTPUTS = ("metrics_output_dir", "tensorboard_dir")
"""Fields of `runtime` that say where results go, and change none."""


class SweepFolder:
    """The folder `run_<timestamp>` of a sweep, locked while the sweep runs."""

    def __init__(self, folder: Folder, started: str) -> None:
        self._folder = folder
        self.path = folder.path
        self._started = started

    @classmethod
    def new(cls, results: str | os.PathLike[str] | None) -> SweepFolder:
        """Make the folder of a new sweep; raises ConfigError if it cannot be written."""
        root = new_root(DEFAULT_RESULTS if results is None else Path(results))
        return cls(Folder.claim(root), _now())

    @classmethod
    def existing(cls, root: str | os.PathLike[str]) -> SweepFolder:
        """Open the folder of a sweep to go on with; a ConfigError says why it cannot be."""
        content = read_sweep(root)
        return cls(Folder.claim(root), str(content.get("started") or _now()))

    def of(self, experiment: Experiment, entries: Mapping[str, Mapping[str, Any]]) -> Path:
        """Return the results folder of an experiment, as it is recorded or by its name.

        A name that a folder cannot have has none; its experiment is rejected.

        Raises:
            ConfigError: sweep.json names a folder that is neither directly in that of the sweep nor
                the one that the config itself names, or it is a symbolic link.
        """
        if name_problem(experiment.name) is not None:
            return self.path
        directory = entries.get(experiment.name, {}).get("directory") or experiment.name
        if directory == str(own_directory(experiment)):
            return Path(directory)
        if name_problem(directory) is not None:
            raise self._outside(experiment, directory, "it is not a folder directly in this one")
        if (self.path / directory).is_symlink():
            raise self._outside(experiment, directory, "it is a symbolic link")
        return self.path / directory

    def _outside(self, experiment: Experiment, directory: str, reason: str) -> ConfigError:
        sentence = (
            f"Folder {str(self.path)!r}: the results of experiment {experiment.name!r} would go to "
            f"{shown(directory)}, and {reason}; move the results into a folder "
            f"{experiment.name!r} there, and write that into {SweepFile.SWEEP} without its digest."
        )
        return ConfigError([Problem("folder", "directory", directory, sentence)])

    def write(self, chosen: Sequence[Experiment], records: Iterable[ExperimentRecord]) -> None:
        """Write sweep.json; after an OSError the one before is left."""
        self._folder.make_again()
        by_name = {record.name: record for record in records}
        entries = [_entry(experiment, by_name[experiment.name], self.path) for experiment in chosen]
        content = {"started": self._started, "written": _now(), "experiments": entries}
        write_json(self.path / SweepFile.SWEEP, sealed(without_secrets_in(content)))

    def write_refusal(self, directory: Path, error: Exception) -> None:
        """Write error.json of an experiment that did not begin; may raise ConfigError."""
        if directory == self.path:
            return
        folder = Folder.claim(directory)
        try:
            folder.set_earlier_run_aside()
            write_json(folder.path / RunFile.ERROR, error_record(error, {}))
        except OSError as unwritten:
            raise unwritable(folder.path, unwritten) from None
        finally:
            folder.release()

    def write_table(self, folders: Mapping[str, Path]) -> Path:
        """Write all_experiments.csv.

        Args:
            folders: experiment -> its results folder, in the order of the rows.

        Raises:
            OSError: it cannot be written; the one before is left.
        """
        self._folder.make_again()
        target = self.path / SweepFile.ALL_EXPERIMENTS
        tables = {name: path / RunFile.METRICS for name, path in folders.items()}
        tables = {name: table for name, table in tables.items() if table.is_file()}
        named = [heading for table in tables.values() for heading in next(_rows(table), [])]
        first = [name for name in STEP_COLUMNS if name in named]
        columns = list(dict.fromkeys([*first, *named]))
        with whole_file(target) as file:
            writer = csv.writer(file)
            writer.writerow([EXPERIMENT_COLUMN, *columns])
            for name, table in tables.items():
                writer.writerows([name, *row] for row in _in_columns(table, columns))
        return target

    def release(self) -> None:
        """Let others have the folder."""
        self._folder.release()


def read_sweep(root: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of sweep.json.

    Raises:
        ConfigError: the folder is not that of a sweep.
    """
    try:
        content = read_json(Path(root) / SweepFile.SWEEP)
        _Sweep.model_validate(content)
        if not is_as_sealed(content):
            reason = "it has other content than was written; remove its digest if that was you"
            raise ValueError(reason)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except OSError as error:
        reason = reason_of(error)
    except ValueError as error:
        reason = str(error)
    else:
        return dict(content)
    sentence = (
        f"Folder {os.fspath(root)!r}: it is not the folder of a sweep, which has a "
        f"{SweepFile.SWEEP} ({reason}); give a folder run_<timestamp>."
    )
    raise ConfigError([Problem("folder", "resume", os.fspath(root), sentence)])


class _Recorded(BaseModel):
    model_config = ConfigDict(strict=True)

    name: str
    source: str | None = None
    directory: str | None = None
    sentences: list[str] = []
    config: dict[str, Any] | None = None


class _Sweep(BaseModel):
    experiments: list[_Recorded]


def experiments_of(root: str | os.PathLike[str]) -> list[Experiment]:
    """Return the experiments of a sweep as they were when it began; raises as `read_sweep`."""
    experiments = []
    for entry in read_sweep(root)["experiments"]:
        config: ExperimentConfig | None = None
        refusal: ConfigError | None = None
        try:
            config = config_from_mapping(_inside(entry.get("config") or {}), name=entry["name"])
        except ConfigError as error:
            sentences = entry.get("sentences", [])
            problems = [Problem("experiment", "config", None, said) for said in sentences]
            refusal = ConfigError(problems) if problems else error
        experiments.append(Experiment(entry["name"], entry.get("source"), config, refusal))
    return experiments


def recorded(root: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Return experiment -> its entry in sweep.json; raises as `read_sweep`."""
    return {entry["name"]: entry for entry in read_sweep(root)["experiments"]}


def config_content(config: ExperimentConfig | None) -> dict[str, Any] | None:
    """Return what decides the results of an experiment: its config without output folders.

    What other fields imply is filled in, as it is when the content is read again.
    """
    if config is None:
        return None
    content: dict[str, Any] = json.loads(json.dumps(config.to_mapping()))
    fill_in(content)
    return _inside(content)


def _inside(content: dict[str, Any]) -> dict[str, Any]:
    runtime = content.get("runtime")
    if not isinstance(runtime, dict):
        return content
    kept = {name: value for name, value in runtime.items() if name not in _OUTPUTS}
    return {**content, "runtime": kept}


def own_directory(experiment: Experiment) -> Path | None:
    """Return the folder that a config names for its results, absolute."""
    named = None if experiment.config is None else experiment.config.runtime.metrics_output_dir
    return None if named is None else Path(named).absolute()


def completed_info(directory: Path) -> dict[str, Any] | None:
    """Return experiment_info.json of a run that is complete; None for any other folder."""
    try:
        info = read_json(directory / RunFile.INFO)
    except (OSError, ValueError):
        return None
    complete = isinstance(info, dict) and info.get("status") == Status.COMPLETED
    return info if complete else None


def _entry(experiment: Experiment, record: ExperimentRecord, root: Path) -> dict[str, Any]:
    directory = record.directory.absolute()
    inside = directory.is_relative_to(root)  # so that the folder of a sweep may be moved
    return {
        "name": experiment.name,
        "source": experiment.source,
        "ranks": experiment.ranks,
        "status": str(record.status),
        "message": record.message,
        "seconds": record.seconds,
        "directory": str(directory.relative_to(root) if inside else directory),
        "sentences": list(experiment.sentences),
        "config": config_content(experiment.config),
    }


def _in_columns(table: Path, columns: Sequence[str]) -> Iterator[list[str]]:
    """Yield the rows of a table in the order of other columns; rows that are not whole are not."""
    rows = _rows(table)
    heading = next(rows, [])
    place = {name: number for number, name in enumerate(heading)}
    order = [place.get(name) for name in columns]
    for row in rows:
        if len(row) == len(heading):
            yield ["" if number is None else row[number] for number in order]


def _rows(table: Path) -> Iterator[list[str]]:
    with open_regular(table, newline="", encoding="utf-8", errors="replace") as file:
        yield from csv.reader(line for line in file if line.endswith("\n"))


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
