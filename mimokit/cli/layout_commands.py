"""`mimokit predict` and `export`: the commands of one layout that need no engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from mimokit.cli.checkpoint_commands import WHOLE_WEIGHTS, export_weights
from mimokit.cli.shared import Json, console, one_of, rejected, write_text
from mimokit.experiment.refusals import refusals

if TYPE_CHECKING:
    from mimokit.architecture import Model
    from mimokit.cli.layout_files import LayoutFile
    from mimokit.interop import Imported
    from mimokit.prediction.over_samples import SamplesPrediction

File = Annotated[
    str,
    typer.Argument(
        help="An experiment (.yaml, or preset:NAME), or a text with Megatron-LM arguments."
    ),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        help="GPU by name (h100, b200, …), or a hardware file; by default what the file says, else "
        "h100."
    ),
]
SeqLength = Annotated[
    int | None,
    typer.Option(
        help="Tokens per sample of the language model, where the file does not say or it is to be "
        "another."
    ),
]
GlobalBatch = Annotated[int | None, typer.Option(help="Samples per step, likewise.")]
Price = Annotated[
    float | None, typer.Option(help="Dollars per GPU-hour; by default what the file says.")
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A shipped model's name or a Hugging Face directory, where the file does not say what "
        "is laid out or it is to be another.",
    ),
]
SoftwareName = Annotated[
    str | None,
    typer.Option(
        "--software",
        help="Training stack by name, or a file that calibrate wrote; by default what the file "
        "says.",
    ),
]
WorldSize = Annotated[int | None, typer.Option("--gpus", help="GPUs, where the file does not say.")]
Output = Annotated[Path | None, typer.Option(help="File to write to; by default printed.")]


def predict(
    file: File,
    gpu: Gpu = None,
    model: ModelName = None,
    gpus: WorldSize = None,
    seq_length: SeqLength = None,
    global_batch: GlobalBatch = None,
    price: Price = None,
    software: SoftwareName = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what every module does in a step.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Predict step time and memory of a layout."""
    from mimokit.cli.layout_files import read_layout_file, with_samples
    from mimokit.prediction import predict as predict_layout

    with refusals():
        read = read_layout_file(file, gpus=gpus, model=model_named(model))
        imported = with_samples(read.found, seq_length, global_batch)
        if read.model is None or imported.workload is None:
            raise rejected(_lacking(file, read, imported), "file", file)
        supposed = read.supposed
        if price is not None:
            supposed.price_per_gpu_hour = price
        known = predict_layout(
            read.model,
            imported.layout,
            imported.workload,
            gpu=gpu or supposed.chosen_gpu,
            software=software or supposed.software,
            price_per_gpu_hour=supposed.price_per_gpu_hour,
        )
        over = samples_predicted(
            read.model,
            imported,
            gpu=gpu or supposed.chosen_gpu,
            software=software or supposed.software,
            price_per_gpu_hour=supposed.price_per_gpu_hour,
        )
    if as_json:
        further = {"explanation": known.explain().to_json()} if explain else {}
        if over is not None:
            further["over_samples"] = over.to_json()
        typer.echo(json.dumps({**known.to_json(), **further}))
        return
    console().print(known)
    if over is not None:
        console().print(over.section())
    if explain:
        console().print(str(known.explain()), markup=False, highlight=False, soft_wrap=True)


def samples_predicted(
    model: Model, imported: Imported, **supposed: Any
) -> SamplesPrediction | None:
    """Return what is predicted over samples, where the experiment has `data.workload`."""
    if imported.workload is None or imported.workload.mix is None:
        return None
    from mimokit import predict_over_samples

    return predict_over_samples(model, imported.layout, imported.workload, **supposed)


def export(
    file: File,
    to: Annotated[
        str, typer.Option(help="yaml, bridge, megatron, torchrun or slurm; safetensors.")
    ],
    model: ModelName = None,
    gpus: WorldSize = None,
    seq_length: SeqLength = None,
    global_batch: GlobalBatch = None,
    script: Annotated[str, typer.Option(help="What torchrun starts.")] = "train.py",
    host: Annotated[list[str] | None, typer.Option(help="A host; may be repeated.")] = None,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of a host.")] = 8,
    output: Output = None,
) -> None:
    """Write a layout for another tool: YAML, Megatron-Bridge, Megatron-LM, torchrun, Slurm.

    With --to safetensors FILE is a results folder or a checkpoint, of which the weights are written
    whole, one file per module, into a new folder.
    """
    if to == WHOLE_WEIGHTS:
        export_weights(file, output)
        return
    from mimokit.cli.layout_files import Format, read_layout_file, text_in_form, with_samples

    with refusals():
        form = one_of("Format", to, get_args(Format))
        read = read_layout_file(file, gpus=gpus, model=model_named(model))
        imported = with_samples(read.found, seq_length, global_batch)
        text = text_in_form(
            imported.layout,
            imported.workload,
            form,
            model=read.model,
            experiment=read.experiment,
            supposed=read.supposed,
            script=script,
            hosts=tuple(host or ()),
            gpus_per_node=gpus_per_node,
        )
    write_text(text, output)


def _lacking(file: str, read: LayoutFile, imported: Imported) -> str:
    lacks = []
    if read.model is None:
        lacks.append(("what model it lays out", "--model"))
    if imported.workload is None:
        lacks.append(("the samples of a step", "--seq-length and --global-batch"))
    what, options = (" and ".join(part) for part in zip(*lacks, strict=True))
    return f"Layout file '{file}': it does not say {what}; give {options}."


def model_named(name: str | None) -> Model | None:
    """Return a shipped model, or one of Hugging Face; None for None."""
    from mimokit.prediction import Workload
    from mimokit.prediction.model_source import resolve_source

    return None if name is None else resolve_source(name, Workload(1, 1))[0]
