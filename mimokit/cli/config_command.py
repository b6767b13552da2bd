"""`mimokit config`: what a file comes to."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from mimokit.cli.shared import File, Json
from mimokit.experiment.refusals import refusals


def config(
    file: File,
    resolved: Annotated[
        bool,
        typer.Option("--resolved", help="Check it, and print implied values and defaults as well."),
    ] = False,
    experiment: Annotated[
        str | None,
        typer.Option(help="One experiment of a file with a sweep, by name; implies --resolved."),
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option(help="Ranks of the world, to work out missing data_parallel sizes."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print what a file and those that it inherits from come to, with the source of each value.

    A file with a sweep is printed with it; --resolved then needs
    --experiment.
    """
    from mimokit.config_files.value_sources import (
        resolved_values,
        to_commented_yaml,
        written_values,
    )

    with refusals():
        values = (
            resolved_values(file, experiment=experiment, world_size=world_size)
            if resolved or experiment is not None
            else written_values(file)
        )
    if as_json:
        rows = [asdict(value) | {"path": ".".join(value.path)} for value in values]
        typer.echo(json.dumps(rows, default=str))
    else:
        typer.echo(to_commented_yaml(values), nl=False)
