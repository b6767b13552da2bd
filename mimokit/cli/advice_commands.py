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
        predicted = checkpoint_memory(
            checkpoint, _sizes(tp), inference=inference, batch=batch,
            seq_length=seq_length, dtype=dtype,
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(predicted.to_json()))
        return
    from mimokit.tables import rich_table
    from mimokit.units import bytes_text

    rows = []
    for number, rank in enumerate(predicted.ranks):
        saved = predicted.saved(number)
        parts = [bytes_text(int(rank.parts[name])) for name in PARTS]
        last = "" if saved is None else f"{saved:.0%}"
        rows.append([str(rank.tensor_parallel), *parts, bytes_text(int(rank.total)), last])
    columns = [Axis.TENSOR.label, *PARTS, "total", "saved"]
    use = "inference" if inference else "training"
    heading = f"{predicted.model_type}, {use}, {batch} x {seq_length:,} tokens, bytes per rank"
    console = _console()
    console.print(rich_table(heading, columns, rows))
    if predicted.scope:
        console.print(predicted.scope, highlight=False)


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
        advice = find(WeightPlanner(checkpoint_of(directory)).checkpoint, gpu, gpus, seq_length)
    if as_json:
        typer.echo(json.dumps(advice.to_json()))
        return
    from mimokit.tables import rich_table
    from mimokit.units import bytes_text

    rows = (
        [
            str(size.tensor_parallel), str(size.data_parallel), f"{size.seconds:.3g} s",
            f"{size.communication_share:.0%}", bytes_text(int(size.memory_bytes)),
            "yes" if size.fits else "no",
        ]
        for size in advice.sizes
    )  # fmt: skip
    tensor, data = Axis.TENSOR.label, Axis.DATA.label
    columns = [tensor, data, "step", "in collectives", "memory of a rank", "fits"]
    heading = f"{gpus} x {advice.gpu}, {advice.seq_length:,} tokens a sample"
    console = _console()
    console.print(rich_table(heading, columns, rows))
    if advice.scope:
        console.print(advice.scope, highlight=False)
    for size, why in advice.rejected.items():
        console.print(f"TP {size}: {why}.", highlight=False)
    console.print(advice.why, highlight=False)
    for name, (value, reason) in advice.environment.items():
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
    from mimokit.planning.weights.directory import refused
    from mimokit.units import shown

    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        what = f"{shown(text)} is not a list of sizes; write sizes such as 1,2,4,8"
        raise refused("Option --tp", "tp", text, what) from None
