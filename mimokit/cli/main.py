"""The command line: `mimokit plan`, `config`, `predict`, `search`, `run`, `analyze` and others."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from mimokit.cli.analyze_command import analyze
from mimokit.cli.calibrate_command import calibrate
from mimokit.cli.checkpoint_commands import checkpoints
from mimokit.cli.cluster_commands import clusters
from mimokit.cli.extra_commands import CommandGroup
from mimokit.cli.frames_command import frames
from mimokit.cli.import_command import import_layout
from mimokit.cli.layout_commands import export, predict, search
from mimokit.cli.run_commands import run, verify
from mimokit.cli.shared import File, Json, console, show
from mimokit.cli.tutorial_command import tutorial
from mimokit.cli.weight_commands import advise, convert, memory, weights
from mimokit.experiment.prepare import REFUSED, refusals
from mimokit.pip_extras import NotInstalledError, asked_for
from mimokit.versions import version_of

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Plan, run, prove and understand parallel layouts of multi-module models.",
)


def _show_versions(wanted: bool) -> None:
    if wanted:
        python = ".".join(map(str, sys.version_info[:3]))
        names = "mimokit", "megatron-core", "torch"
        installed = (f"{name} {version_of(name) or 'not installed'}" for name in names)
        typer.echo(", ".join([*installed, f"Python {python}"]))
        raise typer.Exit


@app.callback()
def common(
    versions: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_versions,
            is_eager=True,
            help="Print the versions of mimokit, Megatron-Core, torch and Python.",
        ),
    ] = False,
) -> None:
    """Take the options that need no command."""


@app.command()
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


@app.command()
def config(
    file: File,
    resolved: Annotated[
        bool,
        typer.Option("--resolved", help="Check it, and print implied values and defaults as well."),
    ] = False,
    experiment: Annotated[
        str | None,
        typer.Option(help="One experiment of a file with a sweep, by name; implies --resolved."),
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option(help="Ranks of the world, to work out missing data_parallel sizes."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print what a file and those that it inherits from come to, with the source of each value.

    A file with a sweep is printed with it; --resolved then needs
    --experiment.
    """
    from mimokit.config_files.value_sources import (
        resolved_values,
        to_commented_yaml,
        written_values,
    )

    with refusals():
        values = (
            resolved_values(file, experiment=experiment, world_size=world_size)
            if resolved or experiment is not None
            else written_values(file)
        )
    if as_json:
        rows = [asdict(value) | {"path": ".".join(value.path)} for value in values]
        typer.echo(json.dumps(rows, default=str))
    else:
        typer.echo(to_commented_yaml(values), nl=False)


app.command()(predict)
app.command()(search)
app.command("import")(import_layout)
app.command()(export)
app.command()(run)
app.command()(verify)
app.command()(clusters)
app.command()(checkpoints)
app.command()(frames)
app.command()(analyze)
app.command()(weights)
app.command()(convert)
app.command()(memory)
app.command()(advise)
app.command()(calibrate)
app.command()(tutorial)


def main() -> None:
    """Run the command line; what a stream cannot hold, as half a character, becomes its escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    verb = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    try:
        with asked_for(f"mimokit {verb}".strip()):
            app()
    except NotInstalledError as error:
        typer.echo(str(error), err=True)
        raise SystemExit(REFUSED) from None


if __name__ == "__main__":
    main()
