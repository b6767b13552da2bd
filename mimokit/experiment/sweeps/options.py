"""The options that `mimokit run` and `python -m mimokit.experiment` have in common."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from mimokit.engine.data.sources import DataSource
    from mimokit.experiment.sweeps.experiments import Experiment, Experiments
    from mimokit.experiment.sweeps.prepared_sweep import PreparedSweep
    from mimokit.experiment.sweeps.runner import Options

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
    typer.Option(
        help="With FILE: go on with training from the checkpoints in this results folder, in the "
        "layout of FILE; of a folder of runs, from the newest run of the same model. Else go on "
        "with the sweep in this folder; skip what is complete. Without an experiment left to run, "
        "exit 0 and start no engines."
    ),
]
FromStep = Annotated[
    int | None,
    typer.Option(help="With --resume and FILE: the checkpoint after so many steps, not the last."),
]
Restarts = Annotated[
    int,
    typer.Option(
        min=0,
        help="How often a run begins again from its last checkpoint (runtime.checkpoint) after a "
        "rank died, froze or raised.",
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="If an experiment is rejected, run nothing and write nothing. Without it, the "
        "rejected ones get an error.json and the others run.",
    ),
]
TimeLimit = Annotated[
    float | None, typer.Option(help="Seconds after which an experiment is ended as failed.")
]
Trace = Annotated[
    bool,
    typer.Option("--trace", help="Time every step of every rank, into trace.json of each folder."),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="The function that makes the data, as package.module:function, in place of the "
        "config's data.source.",
    ),
]
SaveHf = Annotated[
    Path | None,
    typer.Option(
        "--save-hf",
        help="New directory for the trained language model, as Hugging Face reads it. It must "
        "have started from such a directory (weights). For a single experiment.",
    ),
]


@dataclass(frozen=True)
class SweepRequest:
    """What a command line asks for; the fields are arguments of `sweep`."""

    experiments: Experiments | None
    results_dir: Path | None = None
    resume: Path | None = None
    strict: bool = False
    time_limit: float | None = None
    trace: bool = False
    save_hf: Path | None = None
    source: str | None = None
    from_step: int | None = None
    restarts: int = 0

    @property
    def goes_on(self) -> bool:
        """Whether training goes on from a checkpoint: a file is named, and a folder with some."""
        from mimokit.experiment.checkpoints import has_checkpoints
        from mimokit.result_files import SweepFile

        if self.experiments is None or self.resume is None:
            return False
        is_sweep = (self.resume / SweepFile.SWEEP).exists() and self.from_step is None
        return not is_sweep or has_checkpoints(self.resume)

    def find(self) -> tuple[Experiment, ...]:
        """Return the experiments.

        Raises:
            ConfigError: there are none, the folder to resume is not that of a sweep and has no
                checkpoint, or there are several to be resumed or saved in one directory.
        """
        from mimokit.experiment.sweeps.experiments import (
            beginning_again,
            going_on,
            reading_from,
            saved_in,
        )
        from mimokit.experiment.sweeps.prepared_sweep import find

        experiments = reading_from(find(self.experiments, self.resume), self.source)
        if self.goes_on:
            assert self.resume is not None
            experiments = going_on(experiments, self.resume, self.from_step)
        experiments = beginning_again(experiments, self.restarts)
        return experiments if self.save_hf is None else saved_in(experiments, self.save_hf)

    def prepare(
        self, experiments: Sequence[Experiment], engines: int, console: Console
    ) -> PreparedSweep:
        """Prepare the sweep for so many engines, as `prepare_sweep`; name what cannot run."""
        from mimokit.experiment.sweeps.experiments import choose
        from mimokit.experiment.sweeps.prepared_sweep import prepare_sweep
        from mimokit.experiment.sweeps.report import say_checkpoints, say_refusals

        prepared = prepare_sweep(
            choose(experiments, engines),
            results_dir=self.results_dir,
            resume=None if self.goes_on else self.resume,
            strict=self.strict,
        )
        say_refusals(prepared.chosen, console)
        if self.goes_on:
            say_checkpoints(prepared.chosen, console)
        return prepared

    def options(self, data: DataSource | None = None) -> Options:
        """Return how the experiments run; a time limit must be above 0 (ConfigError)."""
        from mimokit.experiment.sweeps.runner import Options

        return Options(self.time_limit, data, trace=self.trace, restarts=self.restarts)


def named_experiments(
    file: str | None, config: str | None, experiments_dir: Path | None, resume: Path | None
) -> str | Path | None:
    """Return the one file or folder that is named; None to resume what a sweep had."""
    named = [source for source in (file, config, experiments_dir) if source is not None]
    if len(named) > 1:
        raise typer.BadParameter("give one of FILE, --config and --experiments-dir, not several")
    if not named:
        if resume is None:
            raise typer.BadParameter("give a FILE, or --experiments-dir DIR, or --resume FOLDER")
        return None
    if experiments_dir is not None and not os.path.isdir(experiments_dir):
        raise typer.BadParameter(f"--experiments-dir {experiments_dir}: the folder does not exist")
    return named[0]
