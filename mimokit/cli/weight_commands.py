"""`mimokit weights` and `convert`: weights without engines."""

import json
from typing import Annotated

import typer

from mimokit.cli import shared
from mimokit.experiment.refusals import refusals
from mimokit.units import counted


def weights(
    directory: shared.Directory,
    tp: shared.Tensor = 1,
    pp: shared.Pipeline = 1,
    dtype: shared.Dtype = None,
    as_json: shared.Json = False,
) -> None:
    """Show which bytes of Hugging Face weights every rank would hold; reads headers alone."""
    from mimokit.planning.weights import plan_weights

    with refusals():
        plan = plan_weights(directory, tp, pp, dtype)
    if as_json:
        typer.echo(json.dumps(plan.to_json()))
        return
    from mimokit.planning.report.weights import sections

    shared.console().print(*sections(plan), sep="")


def convert(
    directory: Annotated[
        str, typer.Argument(help="A directory of Hugging Face weights, or one written by convert.")
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
        from mimokit.engine.weights.conversion import convert_to_hf, convert_to_layout

        if to == "hf":
            most = None if max_shard_size is None else _bytes_of_size(max_shard_size)
            files = convert_to_hf(directory, out, most)
        else:
            files = convert_to_layout(
                directory, out, 1 if tp is None else tp, 1 if pp is None else pp
            ).files
    typer.echo(f"{out}: {counted(len(files), 'file')} with weights")


def _check_target(to: str, sizes: bool, shard_size: bool) -> None:
    from mimokit.planning.weights.directory import refused

    shared.one_of("Target", to, ("layout", "hf"))
    if to == "hf" and sizes:
        what = "--to hf makes no shards; leave out --tp and --pp"
        raise refused("Options", "tp", to, what)
    if to == "layout" and shard_size:
        what = "--max-shard-size belongs to --to hf; a layout has one file a rank"
        raise refused("Options", "max_shard_size", to, what)


def _bytes_of_size(text: str) -> int:
    """Return the bytes of a size such as 5GB, 500MB or 20KB (1 KB is 1,000 bytes), or 4GiB."""
    from pydantic import ByteSize, TypeAdapter

    from mimokit.planning.weights.directory import refused

    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except (ValueError, OverflowError):
        size = 0
    if size > 0:
        return size
    what = f"'{text}' is not a size; write bytes, or 500MB, 5GB or 4GiB"
    raise refused("Option --max-shard-size", "max_shard_size", text, what)
