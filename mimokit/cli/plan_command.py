"""`mimokit plan`: a layout before it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from mimokit.cli.shared import File, Json, console, show
from mimokit.experiment.refusals import refusals


def plan(
    file: File,
    world_size: Annotated[
        int | None,
        typer.Option(help="Ranks of the world; by default the number that the modules need."),
    ] = None,
    engines_per_host: Annotated[
        int | None,
        typer.Option(help="Place the replicas of a strategy on equal hosts with so many engines."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a layout before it runs: ranks, batches, bridges, and what is predicted for it."""
    from mimokit.prediction.planned import equal_hosts
    from mimokit.prediction.planned import plan as plan_layout

    with refusals():
        layout = plan_layout(file, world_size)
        if engines_per_host is not None:
            layout = plan_layout(file, world_size, equal_hosts(layout, engines_per_host))
    show(layout, as_json)
    if not as_json:
        from mimokit.cli.prediction_text import predicted_line

        console().print(predicted_line(file, world_size), markup=False, highlight=False)
