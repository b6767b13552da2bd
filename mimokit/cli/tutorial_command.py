"""`mimokit tutorial`: the notebooks that are shipped, in a folder of the user's."""

import subprocess
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from mimokit.cli.shared import not_written
from mimokit.experiment.refusals import refusals
from mimokit.import_path import module_command
from mimokit.pip_extras import NotInstalledError
from mimokit.units import counted

SHIPPED = Path(__file__).parents[1] / "shipped"
FIRST = "notebooks/start.ipynb"


def tutorial(
    folder: Annotated[Path, typer.Argument(help="Where the notebooks go.")] = Path(
        "mimokit-tutorial"
    ),
    lab: Annotated[bool, typer.Option(help="Open JupyterLab there.")] = True,
) -> None:
    """Copy the tutorial notebooks and their configs into a folder, and open JupyterLab there.

    A file that is already there stays as it is.
    """
    if lab and find_spec("jupyterlab") is None:
        raise NotInstalledError("mimokit tutorial", "jupyterlab")
    with refusals():
        try:
            copied = _copy(folder)
        except OSError as error:
            raise not_written(folder, error.strerror or str(error)) from None
    typer.echo(f"{counted(copied, 'file')} copied; begin with {folder / FIRST}")
    if lab:
        opened = f"--LabApp.default_url=/lab/tree/{FIRST}"
        asked = ("--notebook-dir", str(folder), opened)
        done = subprocess.run(module_command("jupyterlab", *asked), check=False)
        raise typer.Exit(done.returncode)


def _copy(folder: Path) -> int:
    copied = 0
    for kind in sorted(SHIPPED.iterdir()):
        for file in sorted(file for file in kind.rglob("*") if file.suffix in {".ipynb", ".yaml"}):
            target = folder / file.relative_to(SHIPPED)
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError), target.open("xb") as new:  # follows no link
                new.write(file.read_bytes())
                copied += 1
    return copied
