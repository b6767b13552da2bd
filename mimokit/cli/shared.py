"""What commands share: options, output, and the engines that they start."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mimokit.experiment.refusals import refusals

if TYPE_CHECKING:
    from rich.console import Console

    from mimokit.cluster import EngineCluster
    from mimokit.config import ConfigError, Problem

FAILED = 1
"""Exit status of a layout that does not hold, and of a run in which a rank failed."""


def presets(incomplete: str) -> list[str]:
    """Return the shipped configs that a word may become; the shell completes files by itself."""
    from mimokit.config import preset_names

    named = [f"preset:{name}" for name in preset_names()]
    return [name for name in named if incomplete and name.startswith(incomplete)]


File = Annotated[
    str,
    typer.Argument(help="A YAML config, or preset:NAME for a shipped one.", autocompletion=presets),
]
Directory = Annotated[
    str, typer.Argument(help="A directory with config.json and .safetensors files.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
Tensor = Annotated[int, typer.Option("--tp", help="Ranks that share every layer.")]
Pipeline = Annotated[int, typer.Option("--pp", help="Pipeline stages.")]
Dtype = Annotated[
    str | None,
    typer.Option(help="Dtype of loading: float32, bfloat16, …; by default as in the files."),
]
Cluster = Annotated[
    str | None,
    typer.Option(help="Cluster file or profile of a running ipyparallel cluster."),
]


FILE_WIDTH = 400
"""Columns of what does not go to a terminal: enough for every name and number of a table."""


_CONTROLS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "?")


def console() -> Console:
    """Return a console on which lines and tables stay whole where the output is no terminal.

    Texts of files control no terminal: a question mark stands for each of their control characters.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Printed(Console):
        def render(self, *arguments: Any, **options: Any) -> Iterator[Segment]:
            for segment in super().render(*arguments, **options):
                text = segment.text if segment.control else segment.text.translate(_CONTROLS)
                yield Segment(text, segment.style, segment.control)

    if sys.stdout.isatty():
        return Printed()
    return Printed(soft_wrap=True, width=FILE_WIDTH)


def show(result: Any, as_json: bool) -> None:
    """Print what a command returns: its `to_json()`, or as rich shows it."""
    if as_json:
        typer.echo(json.dumps(result.to_json()))
    else:
        console().print(result)


def show_proof(report: Any, as_json: bool) -> None:
    """Print a report, and exit with `FAILED` unless it has passed."""
    show(report, as_json)
    if not report.passed:
        raise typer.Exit(FAILED)


def write_text(text: str, output: Path | None) -> None:
    """Write to a file, or print."""
    if output is None:
        typer.echo(text, nl=False)
        return
    with refusals():
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise not_written(output, error.strerror or str(error)) from None
    typer.echo(f"Written to {output}")


def not_written(path: Path, why: str) -> ConfigError:
    """Return the error that a file of a command cannot be written."""
    right = "give a file in a folder that exists"
    return rejected(f"Output '{path}': it cannot be written ({why}); {right}.", "output", path)


def rejected(sentence: str, option: str, value: object) -> ConfigError:
    """Return the error that an option is rejected."""
    from mimokit.config import ConfigError, Problem

    return ConfigError([Problem("options", option, str(value), sentence)])


def one_of(kind: str, name: str, known: Sequence[str]) -> Any:
    """Return a name of an option; raises `ConfigError` unless it is one of the known ones."""
    from mimokit.config.errors import unknown_name

    if name not in known:
        raise unknown_name(kind, name, known)
    return name


def whole_numbers(text: str, option: str, what: str) -> list[int]:
    """Return the numbers of an option, which are separated by commas."""
    from mimokit.units import shown

    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        right = f"{shown(text)} is not a list of {what}; write {what} such as 1,2,4"
        raise rejected(f"Option {option}: {right}.", option, text) from None


@contextmanager
def engines_for(ranks: int, running: str | None) -> Iterator[EngineCluster]:
    """Yield a cluster of so many engines, or a running one."""
    from mimokit.cluster import EngineCluster

    options: dict[str, Any] = {"n": ranks, "progress": True}
    with EngineCluster(**(options if running is None else connection(running))) as cluster:
        yield cluster


def connection(running: str) -> dict[str, Any]:
    """Return how to connect to a running cluster: by its file or its profile."""
    return {"cluster_file" if os.path.isfile(running) else "profile": running}


@contextmanager
def failures() -> Iterator[None]:
    """Print why a config was rejected or a rank failed, without mimokit's traceback."""
    from mimokit.cluster import ClusterError
    from mimokit.config import ConfigError

    with refusals():
        try:
            yield
        except ConfigError:
            raise
        except (ClusterError, ValueError, OSError) as error:
            typer.echo(" ".join([str(error), *getattr(error, "__notes__", ())]), err=True)
            raise typer.Exit(FAILED) from None


@contextmanager
def named_as_typed() -> Iterator[None]:
    """Reject fields of a config under the names of the options that were typed."""
    from mimokit.config import ConfigError

    try:
        yield
    except ConfigError as error:
        raise ConfigError(
            replace(problem, sentence=_typed(problem)) for problem in error.problems
        ) from None


def _typed(problem: Problem) -> str:
    field, sentence = problem.field, problem.sentence
    for of_config in (f"strategy.{field} ", f"network.{field} ", f"StrategyConfig: {field} "):
        if field != "name" and sentence.startswith(of_config):
            option = f"--{field.lower().replace('_', '-')}"
            return f"{option} {sentence.removeprefix(of_config)}"
    return sentence
