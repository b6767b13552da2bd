"""`mimokit compare`: two recordings of a training loop."""

from __future__ import annotations

from typing import Annotated

import typer

from mimokit.cli.shared import FAILED, Json, rejected, show
from mimokit.experiment.prepare import refusals

Recording = Annotated[str, typer.Argument(help="A folder that mimokit.watch has written.")]


Roundings = Annotated[
    list[str] | None,
    typer.Option(
        "--rounding",
        help="A recording of the first loop with nudge=1 (2, 3, …), which says what a rounding "
        "changes. May be repeated.",
    ),
]


def compare(
    one: Recording, other: Recording, rounding: Roundings = None, as_json: Json = False
) -> None:
    """Name the first tensor on which two recorded training loops differ; exit 1 if one does."""
    from mimokit.experiment.culprit.recordings import compare as compared

    with refusals():
        try:
            found = compared(one, other, rounding or ())
        except ValueError as error:
            raise rejected(str(error), "recording", other) from None
    show(found, as_json)
    if not found.passed:
        raise typer.Exit(FAILED)
