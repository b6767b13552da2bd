"""`mimokit checkpoints`, and the export of weights: what is in the checkpoints of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mimokit.cli.shared import Json, failures, rejected, show

WHOLE_WEIGHTS = "safetensors"
"""The format of `mimokit export` that takes a checkpoint."""


def checkpoints(
    directory: Annotated[
        str, typer.Argument(help="A results folder, a folder of checkpoints, or a checkpoint.")
    ],
    as_json: Json = False,
) -> None:
    """List checkpoints: step, when, layout, size, and what is wrong with one that is not whole."""
    from mimokit.experiment.checkpoints import list_checkpoints

    with failures():
        listed = list_checkpoints(directory)
    show(listed, as_json)


def export_weights(file: str, output: Path | None) -> None:
    """Write the weights of a checkpoint whole, for a single process to read."""
    from mimokit.experiment.checkpoints import find_checkpoint, write_whole

    with failures():
        if output is None:
            raise rejected("Option --output: name a new folder for the weights.", "output", None)
        written = write_whole(find_checkpoint(file), output)
    typer.echo(f"Written to {output}: {', '.join(written)}")
