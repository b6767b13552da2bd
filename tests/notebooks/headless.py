"""Execute a notebook of this project in a separate folder, as the command line does."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat

from mimokit_widgets.notebooks.execute import execute
from mimokit_widgets.notebooks.terminal import Terminal

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def executed_copy(
    name: str, folder: Path, change: Callable[[Any], None] = lambda notebook: None
) -> tuple[Any, str]:
    """Execute a copy of a notebook; return it with its outputs, and its page.

    Args:
        name: of the file.
        folder: an empty one.
        change: changes the copy before it is executed.
    """
    (folder / "configs").symlink_to(NOTEBOOKS.parent / "configs")
    (folder / "notebooks").mkdir()
    notebook = nbformat.read(NOTEBOOKS / name, 4)
    change(notebook)
    nbformat.write(notebook, folder / "notebooks" / name)
    told = io.StringIO()
    status = execute(folder / "notebooks" / name, folder / "out", Terminal(told))
    assert status == 0, told.getvalue()
    done = nbformat.read(folder / "out" / name, 4)
    for cell in done.cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error"
    return done, (folder / "out" / name).with_suffix(".html").read_text()


def insert_behind(notebook: Any, tag: str, source: str) -> None:
    """Insert a cell behind the one cell that has a tag."""
    (place,) = [n for n, cell in enumerate(notebook.cells) if tag in cell.metadata.get("tags", [])]
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(source))


def printed(notebook: Any, source: str) -> str:
    """Return what the one cell whose source contains a text has printed."""
    (cell,) = [c for c in notebook.cells if c.cell_type == "code" and source in c.source]
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")
