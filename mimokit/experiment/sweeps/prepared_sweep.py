"""A sweep before it starts: what is to run, its folder, and what is complete or rejected.

Nothing here needs a cluster or starts a process.
"""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimokit.config import ConfigError, Problem
from mimokit.config.text_file import open_regular
from mimokit.experiment.results.folder import unwritable
from mimokit.experiment.results.info import DIGESTS
from mimokit.experiment.sweeps.experiments import Experiment, Experiments, collect, refuse_all
from mimokit.experiment.sweeps.folder import (
    SweepFolder,
    completed_info,
    config_content,
    experiments_of,
    own_directory,
    recorded,
)
from mimokit.experiment.sweeps.records import ExperimentRecord, ExperimentStatus
from mimokit.planning.digests import digest_of_file
from mimokit.result_files import RunFile

CHANGED = "its config has changed since this sweep began; it runs again"
DAMAGED = f"its {RunFile.METRICS} has other bytes than its run has written; it runs again"


@dataclass(frozen=True)
class PreparedSweep:
    """A sweep that can start: its folder is locked and names every experiment.

    Attributes:
        folder: of the sweep; rejected experiments have their error.json in it.
    """

    chosen: tuple[Experiment, ...]
    records: tuple[ExperimentRecord, ...]
    folder: SweepFolder

    @property
    def needs_engines(self) -> bool:
        """Whether an experiment is left to run."""
        return any(not record.ended for record in self.records)

    @property
    def all_refused(self) -> bool:
        """Whether every experiment is rejected."""
        return all(record.status is ExperimentStatus.REFUSED for record in self.records)


def prepare_sweep(
    chosen: Sequence[Experiment],
    *,
    results_dir: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    strict: bool = False,
) -> PreparedSweep:
    """Claim the folder of a sweep and write the error.json of each rejected experiment.

    The options are those of `sweep`. A single experiment that is rejected leaves no folder unless
    `results_dir` or `resume` names one.

    Raises:
        ConfigError: an experiment is rejected and (strict) nothing may run then, or it is the only
            one and no folder is named; or two folders are named, or the folder cannot be written.
    """
    if results_dir is not None and resume is not None:
        sentence = (
            "Sweep: results_dir and resume are both given; the results of a resumed sweep go into "
            f"its folder '{os.fspath(resume)}', so give one of them."
        )
        raise ConfigError([Problem("sweep", "results_dir", os.fspath(results_dir), sentence)])
    unnamed = len(chosen) == 1 and results_dir is None and resume is None
    if strict or unnamed:
        refuse_all(chosen)
    folder = SweepFolder.new(results_dir) if resume is None else SweepFolder.existing(resume)
    entries = {} if resume is None else recorded(resume)
    only = own_directory(chosen[0]) if unnamed else None
    try:
        records = tuple(
            _record(
                experiment, only or folder.of(experiment, entries), entries.get(experiment.name)
            )
            for experiment in chosen
        )
        prepared = PreparedSweep(tuple(chosen), records, folder)
        _write(prepared)
    except BaseException:
        folder.release()
        raise
    return prepared


def find(
    experiments: Experiments | None, resume: str | os.PathLike[str] | None
) -> tuple[Experiment, ...]:
    """Return the experiments that are named, or those of a sweep that is resumed.

    A resumed sweep reads its files again; where one is gone, its config is that of sweep.json.

    Raises:
        ConfigError: there are none, or the folder is not that of a sweep.
    """
    if experiments is not None:
        return collect(experiments)
    if resume is None:
        sentence = "Experiments: none are named; give a YAML file, a folder, or a sweep to resume."
        raise ConfigError([Problem("experiment", "path", None, sentence)])
    before = experiments_of(resume)
    sources = dict.fromkeys(
        experiment.source for experiment in before if experiment.source is not None
    )
    there = [source for source in sources if os.path.isfile(source)]
    now = {experiment.name: experiment for experiment in (collect(there) if there else ())}
    return tuple(now.get(experiment.name, experiment) for experiment in before)


def _write(prepared: PreparedSweep) -> None:
    folder = prepared.folder
    for experiment, record in zip(prepared.chosen, prepared.records, strict=True):
        if experiment.refusal is not None:
            with contextlib.suppress(ConfigError):  # the sweep's folder says it too
                folder.write_refusal(record.directory, experiment.refusal)
    try:
        folder.write(prepared.chosen, prepared.records)
    except OSError as error:
        raise unwritable(folder.path, error) from None


def _record(
    experiment: Experiment, directory: Path, entry: Mapping[str, Any] | None
) -> ExperimentRecord:
    """Return the state in which an experiment begins; `entry` is what an earlier sweep recorded."""
    iterations = None if experiment.config is None else experiment.config.runtime.num_iterations
    info = None if entry is None else completed_info(directory)
    same = (
        info is not None
        and entry is not None
        and entry.get("config") == config_content(experiment.config)
    )
    status, message = ExperimentStatus.WAITING, CHANGED if info is not None and not same else ""
    if same and info is not None and not _as_written(directory, info):
        same, message = False, DAMAGED
    if experiment.refusal is not None:
        status, message = ExperimentStatus.REFUSED, " ".join(experiment.sentences)
    elif same:
        status, message = ExperimentStatus.SKIPPED, "complete since an earlier sweep"
    skipped = status is ExperimentStatus.SKIPPED
    return ExperimentRecord(
        name=experiment.name,
        status=status,
        ranks=experiment.ranks,
        iteration=(iterations or 0) if skipped else 0,
        iterations=iterations,
        loss=_last_loss(directory) if skipped else None,
        seconds=_seconds(info) if skipped and info is not None else None,
        message=message,
        directory=directory,
    )


def _as_written(directory: Path, info: Mapping[str, Any]) -> bool:
    """Whether the table of a run has the digest that it wrote; true where it wrote none."""
    digests = info.get(DIGESTS)
    digest = digests.get(RunFile.METRICS) if isinstance(digests, dict) else None
    try:
        return digest is None or digest_of_file(directory / RunFile.METRICS) == digest
    except OSError:
        return False


def _seconds(info: Mapping[str, Any]) -> float | None:
    seconds = info.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else None


def _last_loss(directory: Path) -> float | None:
    try:
        with open_regular(directory / RunFile.METRICS, newline="", encoding="utf-8") as file:
            rows: Sequence[Mapping[str, str]] = list(csv.DictReader(file))
        return float(rows[-1]["loss"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
