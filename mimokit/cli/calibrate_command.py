"""`mimokit calibrate`: constants of a training stack from own runs."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from mimokit.cli.shared import Json, console
from mimokit.experiment.refusals import refusals


def calibrate(
    runs: Annotated[
        str, typer.Option("--from", help="Folders of results, or a CSV with a row per run.")
    ],
    gpu: Annotated[
        str, typer.Option(help="The GPU that they ran on, or a hardware file.")
    ] = "h100",
    software: Annotated[
        str | None,
        typer.Option(help="The training stack that they ran with; by default megatron-bridge."),
    ] = None,
    save: Annotated[
        str | None, typer.Option(help="A new file, for --software of predict and search.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Adjust the constants of predictions to own runs; show which moved, and the error left."""
    from mimokit.experiment.own_runs import calibrate_from

    with refusals():
        adjusted = calibrate_from(runs, gpu, software=software, save=save)
    if as_json:
        typer.echo(json.dumps(asdict(adjusted)))
        return
    console().print(str(adjusted), highlight=False)
    if save is not None:
        console().print(f"Wrote {save}; predict and search take it as --software {save}.")
