"""`mimokit plan`: a layout before it runs."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mimokit.cli.shared import Json, console, presets, rejected, show, write_text
from mimokit.experiment.refusals import refusals
from mimokit.extra_rooms import import_extra

if TYPE_CHECKING:
    from mimokit.config import ExperimentConfig


def plan(
    file: Annotated[
        str,
        typer.Argument(
            help="A YAML config, preset:NAME for a shipped one, or a Hugging Face config.json.",
            autocompletion=presets,
        ),
    ],
    world_size: Annotated[
        int | None,
        typer.Option(help="Ranks of the world; by default the number that the modules need."),
    ] = None,
    engines_per_host: Annotated[
        int | None,
        typer.Option(help="Place the replicas of a strategy on equal hosts with so many engines."),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(min=1, help="GPUs there are, for a config.json."),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="GPU by name, for a config.json; by default h100.")
    ] = None,
    seq_length: Annotated[
        int | None, typer.Option(help="Tokens per sample, for a config.json; by default 4096.")
    ] = None,
    global_batch: Annotated[
        int | None,
        typer.Option(help="Samples per step, for a config.json; by default 8 for each GPU."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="YAML file to write what was planned for a config.json to.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a layout before it runs: ranks, batches, bridges, and what is predicted for it."""
    from mimokit.prediction.planned import equal_hosts
    from mimokit.prediction.planned import plan as plan_layout

    with refusals():
        planned: str | ExperimentConfig = file
        if _is_model(file):
            if gpus is None:
                right = "how many GPUs there are is not said; give --gpus"
                raise rejected(f"Model '{file}': {right}.", "gpus", None)
            plans = import_extra("experiment.plan_of_model", f"Model '{file}'")
            planned = plans.config_of_model(file, gpus, gpu, seq_length, global_batch)
        elif [gpus, gpu, seq_length, global_batch, output] != [None] * 5:
            right = "--gpus, --gpu, --seq-length, --global-batch and --output are for a config.json"
            raise rejected(f"Config '{file}': {right}; leave them out.", "gpus", gpus)
        layout = plan_layout(planned, world_size)
        if engines_per_host is not None:
            layout = plan_layout(planned, world_size, equal_hosts(layout, engines_per_host))
    show(layout, as_json)
    if gpus is not None and not as_json:
        task = import_extra("layout_search", f"Model '{file}'").task_of(planned, gpus=gpus)
        if said := plans.fewer_gpus(layout.world_size, task):
            typer.echo(said)
    if output is not None and not isinstance(planned, str):
        write_text(planned.to_yaml(), output)
    if not as_json:
        console().print(_predicted(planned, world_size), markup=False, highlight=False)


def _predicted(source: "str | ExperimentConfig", world_size: int | None) -> str:
    from mimokit.config.errors import ConfigError
    from mimokit.prediction.prediction import predict_task
    from mimokit.prediction.task import task_of
    from mimokit.prediction.verdict import verdict_sentence

    try:
        task = task_of(source, world_size=world_size)
        verdict = predict_task(task).verdict
    except ConfigError as error:
        return f"Nothing is predicted: {error}"
    return f"Predicted on {task.system.hardware.name}: {verdict_sentence(verdict)}."


def _is_model(source: str) -> bool:
    """Return whether a source is a config.json of Hugging Face, or a directory that has one."""
    return Path(source).suffix == ".json" or os.path.isfile(Path(source) / "config.json")
