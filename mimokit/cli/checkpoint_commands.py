"""`mimokit checkpoints`, and the export of weights: what is in the checkpoints of a run."""

from pathlib import Path
from typing import Annotated

import typer

from mimokit.cli.shared import FAILED, Json, failures, rejected, show

WHOLE_WEIGHTS = "safetensors"
"""The format of `mimokit export` that takes a checkpoint."""


def checkpoints(
    directory: Annotated[
        str, typer.Argument(help="A results folder, a folder of checkpoints, or a checkpoint.")
    ],
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare all bytes; exits 1 if any differ.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List checkpoints: step, when, layout, size, and what is wrong with one that is not whole."""
    from mimokit.experiment.checkpoints import list_checkpoints, verify_checkpoints

    with failures():
        listed = verify_checkpoints(directory) if verify else list_checkpoints(directory)
    show(listed, as_json)
    if verify and listed.damaged:
        raise typer.Exit(FAILED)


def export_weights(file: str, output: Path | None) -> None:
    """Write the weights of a checkpoint whole, for a single process to read."""
    from mimokit.experiment.checkpoints import find_checkpoint, write_whole
    from mimokit.planning.checkpoint_files import without_digests

    with failures():
        if output is None:
            raise rejected("Option --output: name a new folder for the weights.", "output", None)
        checkpoint = find_checkpoint(file)
        written = write_whole(checkpoint, output)
    if sentence := without_digests(checkpoint):
        typer.echo(sentence, err=True)
    typer.echo(f"Written to {output}: {', '.join(written)}")
