"""`mimokit weights` and `convert`: the commands for Hugging Face checkpoints."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from mimokit.experiment.prepare import refusals
from mimokit.units import counted

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

    from mimokit.planning.report.weights import sections

    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    for section in sections(plan):
        console.print(section.table())


def convert(
    directory: Annotated[
        str, typer.Argument(help="A Hugging Face checkpoint, or a directory written by convert.")
    ],
    out: Annotated[str, typer.Argument(help="The new directory.")],
    tp: Annotated[int | None, typer.Option("--tp", help="Ranks that share every layer.")] = None,
    pp: Annotated[int | None, typer.Option("--pp", help="Pipeline stages.")] = None,
    to: Annotated[
        str, typer.Option(help="layout: one file a rank; hf: what Hugging Face reads.")
    ] = "layout",
    max_shard_size: Annotated[
        str | None,
        typer.Option(help="Of hf: size of a file, such as 5GB; by default the files as they were."),
    ] = None,
) -> None:
    """Convert weights into a layout's files, into those of another layout, or back."""
    with refusals():
        _check_target(to, tp is not None or pp is not None, max_shard_size is not None)
        from mimokit.engine.weights.conversion import (
            bytes_of_size,
            convert_to_hf,
            convert_to_layout,
        )

        if to == "hf":
            most = None if max_shard_size is None else bytes_of_size(max_shard_size)
            files = convert_to_hf(directory, out, most)
        else:
            files = convert_to_layout(
                directory, out, 1 if tp is None else tp, 1 if pp is None else pp
            ).files
    typer.echo(f"{out}: {counted(len(files), 'file')} with weights")


def _check_target(to: str, sizes: bool, shard_size: bool) -> None:
    """Raise `ConfigError` unless the options of `convert` belong together."""
    from mimokit.config.errors import unknown_name
    from mimokit.planning.weights.directory import refused

    if to not in ("layout", "hf"):
        raise unknown_name("Target", to, ("layout", "hf"))
    if to == "hf" and sizes:
        what = "--to hf makes no shards; leave out --tp and --pp"
        raise refused("Options", "tp", to, what)
    if to == "layout" and shard_size:
        what = "--max-shard-size belongs to --to hf; a layout has one file a rank"
        raise refused("Options", "max_shard_size", to, what)
