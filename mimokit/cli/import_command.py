"""`mimokit import`: the layout in another tool's file, or a LLaVA's weights as an experiment."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, get_args

import typer

from mimokit.cli.layout_commands import ModelName, Output, SeqLength, WorldSize, model_named
from mimokit.cli.shared import Json, one_of, rejected, write_text
from mimokit.experiment.refusals import refusals
from mimokit.units import counted

Source = Annotated[
    str,
    typer.Argument(
        help="An experiment (.yaml, or preset:NAME), a text with Megatron-LM arguments, or the "
        "directory of a LLaVA of Hugging Face, which becomes an experiment."
    ),
]
Mode = Annotated[
    str | None,
    typer.Option(help="Of the experiment: homogeneous (by default), colocated or heterogeneous."),
]


def import_layout(
    source: Source,
    model: ModelName = None,
    gpus: WorldSize = None,
    mode: Mode = None,
    seq_length: SeqLength = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Show the layout that another tool's file describes; write an experiment for a LLaVA."""
    if os.path.isdir(source):
        _import_weights(source, model, gpus, mode, seq_length, output, as_json)
        return
    from mimokit.cli.layout_files import read_layout_file

    with refusals():
        options = {"--mode": mode, "--seq-length": seq_length, "--output": output}
        _check_options(f"'{source}' is not a directory", "one", options)
        read = read_layout_file(source, gpus=gpus, model=model_named(model))
    if as_json:
        notes = list(read.found.notes)
        typer.echo(json.dumps({**read.found.layout.to_json(), "notes": notes}))
        return
    typer.echo(f"{read.found.layout} on {counted(read.found.layout.gpus, 'GPU')}")
    for note in read.found.notes:
        typer.echo(note)


def _import_weights(
    directory: str,
    model: str | None,
    gpus: int | None,
    mode: str | None,
    seq_length: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    from mimokit.config.runtime import DeploymentMode
    from mimokit.interop import config_of_checkpoint

    with refusals():
        _check_options(f"'{directory}' is a directory", "a file", {"--model": model})
        config = config_of_checkpoint(
            directory,
            mode=one_of("Mode", mode or "homogeneous", get_args(DeploymentMode)),
            ranks=gpus,
            seq_length=seq_length,
        )
    write_text(json.dumps(config.to_mapping()) + "\n" if as_json else config.to_yaml(), output)


def _check_options(what: str, right: str, options: Mapping[str, object]) -> None:
    for option, value in options.items():
        if value is not None:
            sentence = f"Option {option}: {what}, and the option belongs to {right}; leave it out."
            raise rejected(sentence, option, value)
