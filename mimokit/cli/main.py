"""The command line: `mimokit plan`, `config`, `predict`, `search`, `run`, `analyze` and others."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from mimokit.cli.advice_commands import advise, memory
from mimokit.cli.analyze_command import analyze
from mimokit.cli.config_command import config
from mimokit.cli.frames_command import frames
from mimokit.cli.import_command import import_layout
from mimokit.cli.layout_commands import export, predict, search
from mimokit.cli.model_commands import check, generate
from mimokit.cli.run_commands import run, verify
from mimokit.cli.strategy_command import strategy
from mimokit.cli.weight_commands import convert, weights
from mimokit.experiment.prepare import refusals

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Plan, run, prove and understand parallel layouts of multi-module models.",
)


@app.command()
def plan(
    file: Annotated[str, typer.Argument(help="A YAML config, or preset:NAME for a shipped one.")],
    world_size: Annotated[
        int | None,
        typer.Option(help="Ranks of the world; by default the number that the modules need."),
    ] = None,
    engines_per_host: Annotated[
        int | None,
        typer.Option(help="Place the replicas of a strategy on equal hosts with so many engines."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not tables.")] = False,
) -> None:
    """Show a layout before it runs: ranks, batches, bridges, and what sharing frames saves."""
    from mimokit.prediction.planned import equal_hosts
    from mimokit.prediction.planned import plan as plan_layout

    with refusals():
        layout = plan_layout(file, world_size)
        if engines_per_host is not None:
            layout = plan_layout(file, world_size, equal_hosts(layout, engines_per_host))
    if as_json:
        typer.echo(json.dumps(layout.to_json()))
        return
    from rich.console import Console

    Console(soft_wrap=not sys.stdout.isatty()).print(layout)


app.command()(config)
app.command()(predict)
app.command()(search)
app.command("import")(import_layout)
app.command()(export)
app.command()(run)
app.command()(verify)
app.command()(strategy)
app.command()(frames)
app.command()(analyze)
app.command()(weights)
app.command()(convert)
app.command()(check)
app.command()(generate)
app.command()(memory)
app.command()(advise)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
