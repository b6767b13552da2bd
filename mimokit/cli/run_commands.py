"""`mimokit run` and `mimokit verify`: the commands that start engines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mimokit.samples import Sample, StepSample

if TYPE_CHECKING:
    from mimokit.cluster import EngineCluster
    from mimokit.config import ExperimentConfig
    from mimokit.experiment.run import TrainingRun

FAILED = 1
"""Exit status of a layout that does not hold, and of a run in which a rank failed."""

File = Annotated[str, typer.Argument(help="A YAML config, or preset:NAME for a shipped one.")]
Cluster = Annotated[
    str | None,
    typer.Option(help="Cluster file or profile of a running ipyparallel cluster."),
]


def verify(
    file: File,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 5,
    tolerance: Annotated[float, typer.Option(help="Largest relative difference.")] = 1e-5,
    cluster: Cluster = None,
) -> None:
    """Prove that a layout computes what one process computes; exit 1 if it does not."""
    from rich.console import Console

    from mimokit.experiment import verify as prove

    with _failures(), _cluster_for(file, cluster) as (engines, config):
        report = prove(engines, config, steps=steps, tolerance=tolerance)
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    else:
        Console(soft_wrap=not sys.stdout.isatty()).print(report)
    if not report.passed:
        raise typer.Exit(FAILED)


def run(
    file: File,
    results_dir: Annotated[
        Path | None, typer.Option(help="Folder for the results; by default one under runs/.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Train on strips of digits: 'read' or 'sum'.")
    ] = None,
    trace: Annotated[
        bool,
        typer.Option(help="Time every step of every rank, into trace.json in the same folder."),
    ] = False,
    cluster: Cluster = None,
) -> None:
    """Train a layout on engines, showing progress, and leave its tables in a folder."""
    from mimokit.experiment import train
    from mimokit.experiment.prepare import score

    with _failures(), _cluster_for(file, cluster) as (engines, config):
        training = train(engines, config, _source(task), directory=results_dir, trace=trace)
        result = _follow(training)
    for row in result.evaluations.to_dict("records"):
        typer.echo(f"{row['task']}: {score(row['exact_match'], row['chance'])}")
    typer.echo(f"Results are in {result.directory}")


def _source(task: str | None) -> Any:
    if task is None:
        return None
    if task not in ("read", "sum"):
        raise typer.BadParameter(f"the task is 'read' or 'sum', not {task!r}")
    from mimokit.engine.data.sources import DigitData

    return DigitData(task)  # type: ignore[arg-type]


def _follow(training: TrainingRun) -> Any:
    """Show rank 0's progress until the run ends; Ctrl-C stops after the iteration.

    A bar on a terminal, a line every `log_interval` iterations elsewhere.
    """
    from tqdm import tqdm

    runtime = training.config.runtime
    with tqdm(total=runtime.num_iterations, unit="step", mininterval=0.5, disable=None) as bar:

        def show(sample: Sample) -> None:
            if not isinstance(sample, StepSample) or sample.rank != 0 or sample.loss is None:
                return
            bar.set_postfix(loss=f"{sample.loss:.3f}", refresh=False)
            bar.update()
            if bar.disable and sample.iteration % runtime.log_interval == 0:
                typer.echo(f"iteration {sample.iteration}: loss {sample.loss:.4f}")

        training.on_sample(show)
        try:
            return training.result()
        except KeyboardInterrupt:
            return training.result()


@contextmanager
def _cluster_for(
    file: str, running: str | None
) -> Iterator[tuple[EngineCluster, ExperimentConfig]]:
    """Check the config, then give a cluster of as many engines as its layout has ranks."""
    from mimokit.cluster import EngineCluster
    from mimokit.config import check_runnable
    from mimokit.experiment.prepare import prepared

    config = prepared(file)
    check_runnable(config)
    ranks = config.model.total_world_size
    if running is None:
        options: dict[str, Any] = {"n": ranks}
    elif Path(running).is_file():
        options = {"cluster_file": running}
    else:
        options = {"profile": running}
    with EngineCluster(**options) as engines:
        yield engines, config


@contextmanager
def _failures() -> Iterator[None]:
    """Print why a config was rejected or a rank failed, without mimokit's traceback."""
    from mimokit.cluster import ClusterError
    from mimokit.experiment.prepare import refusals

    with refusals():
        try:
            yield
        except (ClusterError, ValueError) as error:
            from mimokit.config import ConfigError

            if isinstance(error, ConfigError):
                raise
            typer.echo(str(error), err=True)
            raise typer.Exit(FAILED) from None
