"""`mimokit weights`, `convert`, `memory` and `advise`: weights without engines."""

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
