"""The options that `mimokit run` and `python -m mimokit.experiment` have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[
    str | None, typer.Option("--config", help="A YAML config; the same as FILE.")
]
ExperimentsDir = Annotated[
    Path | None,
    typer.Option(help="Folder whose YAML files, baseline.yaml aside, are the experiments."),
]
ResultsDir = Annotated[
    Path | None,
    typer.Option(help="Gets a new folder run_<timestamp>, with a folder per experiment."),
]
Resume = Annotated[
    Path | None,
    typer.Option(help="Go on with the sweep in this folder; skip what is complete."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Run nothing if an experiment is rejected.")]
TimeLimit = Annotated[
    float | None, typer.Option(help="Seconds after which an experiment is ended as failed.")
]
Trace = Annotated[
    bool,
    typer.Option("--trace", help="Time every step of every rank, into trace.json of each folder."),
]


def named_experiments(
    file: str | None, config: str | None, experiments_dir: Path | None, resume: Path | None
) -> str | Path | None:
    """Return the file or folder that the command line names; None to resume what a sweep had.

    Raises:
        BadParameter: none is named, or several are.
    """
    named = [one for one in (file, config, experiments_dir) if one is not None]
    if len(named) > 1:
        raise typer.BadParameter("give one of FILE, --config and --experiments-dir, not several")
    if not named:
        if resume is None:
            raise typer.BadParameter("give a FILE, or --experiments-dir DIR, or --resume FOLDER")
        return None
    if experiments_dir is not None and not experiments_dir.is_dir():
        raise typer.BadParameter(f"--experiments-dir {experiments_dir}: there is no such folder")
    return named[0]
