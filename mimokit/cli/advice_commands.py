"""`mimokit memory` and `advise`: which tensor parallel size to train a model with."""

import json
from collections.abc import Mapping
from typing import Annotated

import typer

from mimokit.axes import Axis
from mimokit.cli import shared
from mimokit.experiment.refusals import refusals
from mimokit.tables import Section
from mimokit.units import bytes_text, counted

Described = Annotated[
    str, typer.Argument(help="A directory with config.json; weights need not be there.")
]


def memory(
    directory: Described,
    tp: Annotated[
        str | None,
        typer.Option("--tp", help="Tensor parallel sizes; by default those of 1,2,4,8 that fit."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Sequences of a rank at once.")] = 1,
    seq_length: Annotated[
        int | None,
        typer.Option(help="Tokens of each; by default 4,096, or the model's positions if fewer."),
    ] = None,
    as_json: shared.Json = False,
) -> None:
    """Show the bytes per rank to train at tensor parallel sizes, and what each saves."""
    from mimokit.planning.weights.config_tensors import described_weights
    from mimokit.prediction.weights_memory import PARTS, checkpoint_memory

    with refusals():
        sizes = None if tp is None else shared.whole_numbers(tp, "--tp", "sizes")
        predicted = checkpoint_memory(
            described_weights(directory), sizes, batch=batch, seq_length=seq_length
        )
    if as_json:
        typer.echo(json.dumps(predicted.to_json()))
        return
    rows = []
    for number, rank in enumerate(predicted.ranks):
        saved = predicted.saved(number)
        parts = [bytes_text(int(rank.parts[name])) for name in PARTS]
        last = "" if saved is None else f"{saved:.0%}"
        rows.append([str(rank.tensor_parallel), *parts, bytes_text(int(rank.total)), last])
    columns = [Axis.TENSOR.label, *PARTS, "total", "saved"]
    tokens = counted(predicted.seq_length, "token")
    heading = f"{predicted.model_type}, training, {batch} x {tokens}, bytes per rank"
    sentences = [*filter(None, [predicted.scope]), *_left_out(predicted.rejected)]
    shared.console().print(Section(heading, columns, rows, sentences))


def advise(
    directory: Described,
    gpu: Annotated[str, typer.Option(help="A GPU's name, or a hardware file.")],
    gpus: Annotated[int, typer.Option(help="How many there are.")] = 8,
    seq_length: Annotated[
        int | None, typer.Option(help="Tokens of a sample; by default 4,096 at most.")
    ] = None,
    as_json: shared.Json = False,
) -> None:
    """Say which tensor parallel size to take, and what to set before engines start."""
    from mimokit.planning.weights.config_tensors import described_weights
    from mimokit.prediction.advice import LEFT_UNSET
    from mimokit.prediction.advice import advise as find

    with refusals():
        advice = find(described_weights(directory), gpu, gpus, seq_length)
    if as_json:
        typer.echo(json.dumps(advice.to_json()))
        return
    rows = [
        [
            str(size.tensor_parallel), str(size.data_parallel), f"{size.seconds:.3g} s",
            f"{size.communication_share:.0%}", bytes_text(int(size.memory_bytes)),
            "yes" if size.fits else "no",
        ]
        for size in advice.sizes
    ]  # fmt: skip
    tensor, data = Axis.TENSOR.label, Axis.DATA.label
    columns = [tensor, data, "step", "in collectives", "memory of a rank", "fits"]
    heading = f"{gpus} x {advice.gpu}, {counted(advice.seq_length, 'token')} a sample"
    sentences = [
        *filter(None, [advice.scope]),
        *_left_out(advice.rejected),
        advice.why,
        *(
            f"Set {name}={value} before engines start: {reason}."
            for name, (value, reason) in advice.environment.items()
        ),
        *(f"Leave {name} unset: {reason}" for name, reason in LEFT_UNSET.items()),
    ]
    shared.console().print(Section(heading, columns, rows, sentences))


def _left_out(rejected: Mapping[int, str]) -> list[str]:
    return [f"TP {size}: {why}." for size, why in rejected.items()]
