"""`mimokit search`, `predict`, `import` and `export`: the commands that need no engine."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mimokit.experiment.refusals import refusals

if TYPE_CHECKING:
    from mimokit.plan.architecture import Model
    from mimokit.plan.prediction import Workload
    from mimokit.plan.search import SearchProgress, SearchResult

File = Annotated[
    str,
    typer.Argument(
        help="An experiment (.yaml, or preset:NAME), Megatron-Bridge Python (.py), or a text with "
        "Megatron-LM arguments."
    ),
]
Gpu = Annotated[str, typer.Option(help="GPU by name, or a hardware file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, not tables.")]
SeqLength = Annotated[int | None, typer.Option(help="Tokens per sample of the language model.")]
GlobalBatch = Annotated[int | None, typer.Option(help="Samples per step.")]
Price = Annotated[float | None, typer.Option(help="Dollars per GPU-hour.")]
ModelName = Annotated[
    str | None, typer.Option("--model", help="A shipped model, or a Hugging Face directory.")
]
WorldSize = Annotated[int | None, typer.Option("--gpus", help="GPUs, where the file does not say.")]
Output = Annotated[Path | None, typer.Option(help="File to write to; by default printed.")]


def search(
    source: Annotated[
        str,
        typer.Argument(
            help="An experiment (.yaml, or preset:NAME), a shipped model's name, or a Hugging Face "
            "directory."
        ),
    ],
    gpus: Annotated[int, typer.Option(help="GPUs there are; layouts may take fewer.")],
    gpu: Gpu = "h100",
    top: Annotated[int, typer.Option(min=1, help="Layouts to show.")] = 10,
    objective: Annotated[
        str, typer.Option(help="What is to be small: step_time, cost or memory.")
    ] = "step_time",
    seq_length: SeqLength = None,
    global_batch: GlobalBatch = None,
    mode: Annotated[list[str] | None, typer.Option(help="Mode to try; may be repeated.")] = None,
    memory_share: Annotated[
        float, typer.Option(help="Share of a GPU's memory that may be planned.")
    ] = 0.9,
    price: Price = None,
    export: Annotated[
        str | None,
        typer.Option(help="Write the best as yaml, bridge, megatron, torchrun or slurm."),
    ] = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Find the best layout of a model among all that there are, and say why."""
    from mimokit.plan.search import MODES, Constraints, resolve_source
    from mimokit.plan.search import search as find

    with refusals(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what was cut stands in the tables
        given = _workload(seq_length, global_batch)
        model, workload = resolve_source(source, given)
        rules = Constraints(modes=tuple(mode or MODES), memory_share=memory_share)  # type: ignore[arg-type]
        with _progress() as show:
            result = find(
                model,
                gpus=gpus,
                hardware=gpu,
                objective=objective,  # type: ignore[arg-type]
                constraints=rules,
                workload=workload,
                price_per_gpu_hour=price,
                finalists=max(top, 32),
                progress=show,
            )
        text = None if export is None else _export_best(result, source, export)
    if as_json:
        typer.echo(json.dumps(result.to_json()))
    else:
        _show_search(result, top)
    if text is not None:
        _write(text, output)


def predict(
    file: File,
    gpu: Gpu = "h100",
    model: ModelName = None,
    gpus: WorldSize = None,
    seq_length: SeqLength = None,
    global_batch: GlobalBatch = None,
    price: Price = None,
    as_json: Json = False,
) -> None:
    """Predict step time and memory of a layout."""
    from mimokit.config import ConfigError, Problem
    from mimokit.experiment.layout_files import read_layout_file, with_samples
    from mimokit.plan.prediction import predict as predict_layout

    with refusals():
        read = read_layout_file(file, gpus=gpus, model=_model(model))
        found = with_samples(read.found, seq_length, global_batch)
        if read.model is None or found.workload is None:
            lacks = "--model" if read.model is None else "--seq-length and --global-batch"
            sentence = f"Layout file '{file}': it does not say everything; give {lacks}."
            raise ConfigError([Problem("file", lacks, None, sentence)])
        known = predict_layout(
            read.model, found.layout, found.workload, gpu, price_per_gpu_hour=price
        )
    if as_json:
        typer.echo(json.dumps(known.to_json()))
        return
    from mimokit.experiment.prediction_text import prediction_to_rich

    _console().print(prediction_to_rich(known))


def import_layout(
    file: File, model: ModelName = None, gpus: WorldSize = None, as_json: Json = False
) -> None:
    """Show the layout that somebody else's file describes."""
    from mimokit.experiment.layout_files import read_layout_file

    with refusals():
        read = read_layout_file(file, gpus=gpus, model=_model(model))
    if as_json:
        notes = list(read.found.notes)
        typer.echo(json.dumps({**read.found.layout.to_json(), "notes": notes}))
        return
    typer.echo(f"{read.found.layout} on {read.found.layout.gpus} GPUs")
    for note in read.found.notes:
        typer.echo(note)


def export(
    file: File,
    to: Annotated[str, typer.Option(help="yaml, bridge, megatron, torchrun or slurm.")],
    model: ModelName = None,
    gpus: WorldSize = None,
    seq_length: SeqLength = None,
    global_batch: GlobalBatch = None,
    script: Annotated[str, typer.Option(help="What torchrun starts.")] = "train.py",
    host: Annotated[list[str] | None, typer.Option(help="A host; may be repeated.")] = None,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of a host.")] = 8,
    output: Output = None,
) -> None:
    """Write a layout for somebody else: YAML, Megatron-Bridge, Megatron-LM, torchrun, Slurm."""
    from mimokit.experiment.layout_files import read_layout_file, with_samples, written

    with refusals():
        form = _format(to)
        read = read_layout_file(file, gpus=gpus, model=_model(model))
        found = with_samples(read.found, seq_length, global_batch)
        text = written(
            found.layout,
            found.workload,
            form,
            model=read.model,
            experiment=read.experiment,
            script=script,
            hosts=tuple(host or ()),
            gpus_per_node=gpus_per_node,
        )
    _write(text, output)


def _export_best(result: SearchResult, source: str, form: str) -> str:
    from mimokit.config import load_experiment_config
    from mimokit.config.inheritance import PRESET_PREFIX
    from mimokit.experiment.layout_files import written

    is_experiment = source.startswith(PRESET_PREFIX) or source.endswith((".yaml", ".yml"))
    return written(
        result.best.layout,
        result.task.workload,
        _format(form),
        model=result.task.model,
        experiment=load_experiment_config(source) if is_experiment else None,
    )


def _format(form: str) -> Any:
    from typing import get_args

    from mimokit.experiment.layout_files import Format
    from mimokit.plan.names import unknown_name

    if form not in get_args(Format):
        raise unknown_name("Format", form, get_args(Format))
    return form


def _model(name: str | None) -> Model | None:
    from mimokit.plan.prediction import Workload
    from mimokit.plan.search import resolve_source

    return None if name is None else resolve_source(name, Workload(1, 1))[0]


def _workload(seq_length: int | None, global_batch: int | None) -> Workload | None:
    """Return what a step computes; None leaves it to the experiment."""
    from mimokit.plan.prediction import Workload

    if seq_length is None and global_batch is None:
        return None
    return Workload(seq_length or 0, global_batch or 0)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        typer.echo(text, nl=False)
        return
    output.write_text(text, encoding="utf-8")
    typer.echo(f"Written to {output}")


def _show_search(result: SearchResult, top: int) -> None:
    from mimokit.plan.search import result_to_rich

    console = _console()
    console.print(result_to_rich(result, top))
    console.print(result.explain(), markup=False, highlight=False)


def _console() -> Any:
    from rich.console import Console

    return Console(soft_wrap=not sys.stdout.isatty())


@contextmanager
def _progress() -> Iterator[Any]:
    """Give a callback that shows progress on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("searching", total=1.0)

        def show(progress: SearchProgress) -> None:
            text = f"{progress.evaluated:,} layouts"
            bar.update(task, completed=progress.share, description=text)

        yield show
