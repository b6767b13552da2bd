"""Execute a notebook of this project in a separate folder, as the command line does."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat

from make.notebooks.execute import execute
from make.notebooks.terminal import Terminal
from mimokit.charts import _renderer
from tests.charts.pictures import faults

SVG = "image/svg+xml"
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
    return executed(folder / "notebooks" / name, folder / "out")[:2]


def executed(file: Path, out: Path) -> tuple[Any, str, str]:
    """Execute a notebook; return it with its outputs, its page, and what was told meanwhile.

    No cell may raise, and all charts must be readable.
    """
    told = io.StringIO()
    assert execute(file, out, Terminal(told)) == 0, told.getvalue()
    notebook = nbformat.read(out / file.name, 4)
    assert all(output.output_type != "error" for output in outputs_of(notebook))
    assert faults_of_charts(notebook) == []
    return notebook, (out / file.name).with_suffix(".html").read_text(), told.getvalue()


def outputs_of(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def faults_of_charts(notebook: Any) -> list[str]:
    found = []
    for bundle in (output.get("data", {}) for output in outputs_of(notebook)):
        name = bundle.get("text/plain", "a chart")
        if SVG in bundle:
            found += [f"{name}: {fault}" for fault in faults(bundle[SVG])]
        elif _renderer.MIME_TYPE in bundle:
            found.append(f"{name}: it has no picture")
    return found


def insert_behind(notebook: Any, tag: str, source: str) -> None:
    (place,) = [n for n, cell in enumerate(notebook.cells) if tag in cell.metadata.get("tags", [])]
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(source))


def printed(notebook: Any, source: str) -> str:
    """Return what the one cell whose source contains a text has printed."""
    (cell,) = [c for c in notebook.cells if c.cell_type == "code" and source in c.source]
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")
