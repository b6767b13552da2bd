"""The command line: `mimokit plan`, `config`, `predict`, `search`, `run`, `analyze` and others."""

import gc
import io
import os
import sys
from typing import Annotated

import typer

from mimokit.cli.command_group import CommandGroup
from mimokit.experiment.refusals import REFUSED
from mimokit.extra_rooms import MissingRoomError
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


_FEWER_COLLECTIONS = 500_000
"""New objects per collection. What imports make stays: to look through it at every 700th object
takes an eighth of the time of `plan`."""

_AT_ONCE = {"OPENBLAS_NUM_THREADS": "1", "PYDANTIC_DISABLE_PLUGINS": "__all__"}
"""Else numpy starts threads that spin 0.1 s, and pydantic searches all packages for plugins."""


def main() -> None:
    """Run the command line; what a stream cannot hold, as half a character, becomes its escape."""
    gc.set_threshold(_FEWER_COLLECTIONS)
    for name, value in _AT_ONCE.items():
        os.environ.setdefault(name, value)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    verb = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    try:
        with asked_for(f"mimokit {verb}".strip()):
            app()
    except (NotInstalledError, MissingRoomError) as error:
        typer.echo(str(error), err=True)
        raise SystemExit(REFUSED) from None
    finally:
        gc.freeze()  # else Python looks through all that is left, for a tenth of a second


if __name__ == "__main__":
    main()
