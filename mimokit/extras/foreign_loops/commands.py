"""`mimokit compare`: two recordings of a training loop."""

from typing import Annotated

import typer

from mimokit.cli.shared import Json, rejected, show_proof
from mimokit.experiment.refusals import refusals

Recording = Annotated[str, typer.Argument(help="A folder that mimokit.watch has written.")]


Roundings = Annotated[
    list[str] | None,
    typer.Option(
        "--rounding",
        help="A recording of the first loop with nudge=1 (2, 3, …), which says what a rounding "
        "changes. May be repeated.",
    ),
]


Names = Annotated[
    list[str] | None,
    typer.Option(
        "--name",
        help="SECOND=FIRST: a module or parameter of the second recording that has another name in "
        "the first. May be repeated.",
    ),
]

Cuts = Annotated[
    list[str] | None,
    typer.Option(
        "--cut",
        help="NAME=DIMENSION: along which ranks cut a tensor, where neither marks nor shapes tell. "
        "May be repeated.",
    ),
]


def compare(
    first: Recording,
    second: Recording,
    rounding: Roundings = None,
    name: Names = None,
    cut: Cuts = None,
    as_json: Json = False,
) -> None:
    """Name the first tensor on which two recorded training loops differ; exit 1 if one does."""
    from mimokit.extras.foreign_loops.comparison import compare as compared

    with refusals():
        try:
            names = dict(_pair(text, "--name", "SECOND=FIRST") for text in name or ())
            cuts = dict(_cut(text) for text in cut or ())
            comparison = compared(first, second, rounding or (), names=names, cuts=cuts)
        except ValueError as error:
            raise rejected(str(error), "recording", second) from None
    show_proof(comparison, as_json)


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    before, sign, after = text.partition("=")
    if not (before and sign and after):
        raise ValueError(f"{option} {text} should be {form}.")
    return before, after


def _cut(text: str) -> tuple[str, int]:
    name, dimension = _pair(text, "--cut", "NAME=DIMENSION")
    if not dimension.lstrip("-").isdigit():
        raise ValueError(f"--cut {text} should be NAME=DIMENSION, such as up.weight=0.")
    return name, int(dimension)
