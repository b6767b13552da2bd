"""`mimokit memory` and `advise`: what a checkpoint's model needs, before anything is booked."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mimokit.axes import Axis
from mimokit.cli.weight_commands import Directory
from mimokit.experiment.prepare import refusals

if TYPE_CHECKING:
    from rich.console import Console


def memory(
    directory: Directory,
    tp: Annotated[str, typer.Option("--tp", help="Tensor parallel sizes.")] = "1,2,4,8",
    inference: Annotated[
        bool, typer.Option("--inference", help="To generate, not to train.")
    ] = False,
    batch: Annotated[int, typer.Option(help="Sequences of a rank at once.")] = 1,
    seq_length: Annotated[int, typer.Option(help="Tokens of each.")] = 4096,
    dtype: Annotated[
        str | None, typer.Option(help="Of weights and cache for inference; as in the files.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Show the bytes per rank at tensor parallel sizes, and what each saves; headers alone."""
    from mimokit.planning.weights import WeightPlanner
    from mimokit.planning.weights.layout_files import checkpoint_of
    from mimokit.prediction.weights_memory import PARTS, checkpoint_memory

    with refusals():
        checkpoint = WeightPlanner(checkpoint_of(directory)).checkpoint
        found = checkpoint_memory(
            checkpoint, _sizes(tp), inference=inference, batch=batch,
            seq_length=seq_length, dtype=dtype,
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(found.to_json()))
        return
    from mimokit.tables import rich_table
    from mimokit.units import bytes_text

    rows = []
    for number, one in enumerate(found.ranks):
        saved = found.saved(number)
        parts = [bytes_text(int(one.parts[name])) for name in PARTS]
        last = "" if saved is None else f"{saved:.0%}"
        rows.append([str(one.tensor_parallel), *parts, bytes_text(int(one.total)), last])
    columns = [Axis.TENSOR.label, *PARTS, "total", "saved"]
    use = "inference" if inference else "training"
    heading = f"{found.model_type}, {use}, {batch} x {seq_length:,} tokens, bytes per rank"
    console = _console()
    console.print(rich_table(heading, columns, rows))
    if found.scope:
        console.print(found.scope, highlight=False)


def advise(
    directory: Directory,
    gpu: Annotated[str, typer.Option(help="A GPU's name, or a hardware file.")],
    gpus: Annotated[int, typer.Option(help="How many there are.")] = 8,
    seq_length: Annotated[
        int | None, typer.Option(help="Tokens of a sample; by default 4,096 at most.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Say which tensor parallel size to take, and what to set before engines start."""
    from mimokit.planning.weights import WeightPlanner
    from mimokit.planning.weights.layout_files import checkpoint_of
    from mimokit.prediction.advice import LEFT_UNSET
    from mimokit.prediction.advice import advise as find

    with refusals():
        found = find(WeightPlanner(checkpoint_of(directory)).checkpoint, gpu, gpus, seq_length)
    if as_json:
        typer.echo(json.dumps(found.to_json()))
        return
    from mimokit.tables import rich_table
    from mimokit.units import bytes_text

    rows = (
        [
            str(one.tensor_parallel), str(one.data_parallel), f"{one.seconds:.3g} s",
            f"{one.communication_share:.0%}", bytes_text(int(one.memory_bytes)),
            "yes" if one.fits else "no",
        ]
        for one in found.sizes
    )  # fmt: skip
    tensor, data = Axis.TENSOR.label, Axis.DATA.label
    columns = [tensor, data, "step", "in collectives", "memory of a rank", "fits"]
    heading = f"{gpus} x {found.gpu}, {found.seq_length:,} tokens a sample"
    console = _console()
    console.print(rich_table(heading, columns, rows))
    if found.scope:
        console.print(found.scope, highlight=False)
    for size, why in found.rejected.items():
        console.print(f"TP {size}: {why}.", highlight=False)
    console.print(found.why, highlight=False)
    for name, (value, reason) in found.environment.items():
        console.print(f"Set {name}={value} before engines start: {reason}.", highlight=False)
    for name, reason in LEFT_UNSET.items():
        console.print(f"Leave {name} unset: {reason}", highlight=False)


def _console() -> Console:
    from rich.console import Console

    return Console(soft_wrap=not sys.stdout.isatty())


def _sizes(text: str) -> list[int]:
    """Return tensor parallel sizes.

    Raises:
        ConfigError: the text is something else.
    """
    from mimokit.planning.weights.headers import refused
    from mimokit.units import shown

    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        what = f"{shown(text)} is not a list of sizes; write sizes such as 1,2,4,8"
        raise refused("Option --tp", "tp", text, what) from None
