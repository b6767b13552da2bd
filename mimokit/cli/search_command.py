"""`mimokit search`: the best layout of a model on so many GPUs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from mimokit.cli.layout_commands import GlobalBatch, Gpu, Output, Price, SeqLength, SoftwareName
from mimokit.cli.shared import Json, console, one_of, write_text
from mimokit.experiment.refusals import refusals
from mimokit.progress import is_watched, shown
from mimokit.units import counted

if TYPE_CHECKING:
    from mimokit.layout_search import SearchProgress


def search(
    source: Annotated[
        str,
        typer.Argument(
            help="An experiment (.yaml, or preset:NAME), a shipped model's name, or a Hugging Face "
            "directory."
        ),
    ],
    gpus: Annotated[int, typer.Option(help="GPUs there are; layouts may take fewer.")],
    gpu: Gpu = None,
    top: Annotated[int, typer.Option(min=1, help="Layouts to show.")] = 10,
    objective: Annotated[
        str, typer.Option(help="What is to be small: step_time, cost or memory.")
    ] = "step_time",
    seq_length: SeqLength = None,
    global_batch: GlobalBatch = None,
    software: SoftwareName = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            help="Mode to try: homogeneous, colocated or heterogeneous; may be repeated. By "
            "default all."
        ),
    ] = None,
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
    """Find the best layout of a model among all valid ones, and say why.

    An experiment says the samples of a step; for a model by name give --seq-length and
    --global-batch.
    """
    from mimokit.cli.layout_files import Format, searched, text_in_form
    from mimokit.layout_search import MODES, Constraints
    from mimokit.layout_search import search as find

    with refusals(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what was cut stands in the tables
        form = None if export is None else one_of("Format", export, get_args(Format))
        asked = searched(source, seq_length, global_batch, gpu, price)
        rules = Constraints(modes=tuple(mode or MODES), memory_share=memory_share)  # type: ignore[arg-type]
        with _progress() as show:
            result = find(
                asked.source,
                gpus=gpus,
                gpu=asked.prediction.gpu,
                objective=objective,  # type: ignore[arg-type]
                constraints=rules,
                workload=asked.workload,
                software=software or asked.prediction.software,
                price_per_gpu_hour=asked.prediction.price_per_gpu_hour,
                finalists=max(top, 32),
                progress=show,
            )
        over = None if result.task.workload.mix is None else result.over_samples()
    if as_json:
        further = {} if over is None else {"over_samples": over.to_json()}
        typer.echo(json.dumps({**result.to_json(), **further}))
    else:
        to = console()
        to.print(*result.sections(top), sep="")
        to.print(result.explain(), markup=False, highlight=False)
        if over is not None:
            to.print(over.section())
    if form is not None:
        with refusals():
            text = text_in_form(
                result.best.layout,
                result.task.workload,
                form,
                model=result.task.model,
                experiment=asked.experiment,
                supposed=asked.prediction,
            )
        write_text(text, output)


@contextmanager
def _progress() -> Iterator[Callable[[SearchProgress], None] | None]:
    if not is_watched():
        yield None
        return
    with shown("Searching", total=1.0) as bar:
        yield lambda at: bar.update(at.share, counted(at.evaluated, "layout"))
