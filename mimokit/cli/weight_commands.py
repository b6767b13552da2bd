"""`mimokit weights`: the commands for Hugging Face checkpoints."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from mimokit.experiment.prepare import refusals

FILE_WIDTH = 400
"""Columns of a table that does not go to a terminal: enough for every name."""

Directory = Annotated[
    str, typer.Argument(help="A directory with config.json and .safetensors files.")
]
Tensor = Annotated[int, typer.Option("--tp", help="Ranks that share every layer.")]
Pipeline = Annotated[int, typer.Option("--pp", help="Pipeline stages.")]


def weights(
    directory: Directory,
    tp: Tensor = 1,
    pp: Pipeline = 1,
    dtype: Annotated[
        str | None,
        typer.Option(help="Dtype of loading: float32, bfloat16, …; by default as in the files."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not tables.")] = False,
) -> None:
    """Show which bytes of a Hugging Face checkpoint every rank would hold; reads headers alone."""
    from mimokit.planning.weights import plan_weights

    with refusals():
        plan = plan_weights(directory, tp, pp, dtype)
    if as_json:
        typer.echo(json.dumps(plan.to_json()))
        return
    from rich.console import Console

    from mimokit.planning.weights.text import tables

    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    for table in tables(plan):
        console.print(table)
