"""Tutorials: the notebooks as pages, with what `make docs` executed them to.

A notebook that was not executed is shown without outputs, and says so.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
from traitlets.config import Config

from make.notebooks.page import WIDGET
from make.site.pictures import page_of

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
EXECUTED = ROOT / "build" / "tutorials"
FAN_IN = "03_step_through.ipynb"
KINDS = ["text/html", "text/markdown", "image/svg+xml", "image/png", "text/plain"]
"""What a page shows of an output, best first."""
NO_COLOR = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def notebooks() -> list[Path]:
    """Return the notebooks, in the order of their names."""
    return sorted(NOTEBOOKS.glob("*.ipynb"))


def pages_of(notebook: Path) -> dict[str, str | bytes]:
    """Return path -> content of a notebook's page and of the pictures on it.

    Where the executed notebook left a page of its own, which is alive without a kernel, that is
    linked.
    """
    executed = EXECUTED / notebook.name
    content = nbformat.read(executed if _is_of(executed, notebook) else notebook, as_version=4)
    was_run = any(cell.get("outputs") for cell in content.cells)
    text, resources = _exporter(notebook.stem).from_notebook_node(_cleaned(content))
    made: dict[str, str | bytes] = {
        f"tutorials/{path}": picture for path, picture in resources.get("outputs", {}).items()
    }
    place = f"[notebooks/{notebook.name}](../../notebooks/{notebook.name})"
    note = f"From `{place[1:].partition(']')[0]}`: `make lab` opens it."
    if was_run and executed.with_suffix(".html").exists():
        made[f"tutorials/{notebook.stem}.page.html"] = executed.with_suffix(".html").read_bytes()
        note += f" [The same as one page]({notebook.stem}.page.html), where monitors move."
    if not was_run:
        note += " It was not executed for these pages, so results are missing."
    heading, _, rest = text.strip().partition("\n")
    made[f"tutorials/{notebook.stem}.md"] = f"{heading}\n\n*{note}*\n{_linked(rest)}\n"
    return made


def fan_in() -> dict[str, str | bytes]:
    """Return the page of the stepper, alive without a kernel, that `docs/stepper.md` shows."""
    executed = EXECUTED / FAN_IN
    shown = f"<p>{FAN_IN} was not executed for these pages, so this view is missing.</p>"
    if _is_of(executed, NOTEBOOKS / FAN_IN):
        for cell in nbformat.read(executed, as_version=4).cells:
            if "fan-in" in cell.metadata.get("tags", []):
                shown = next(o.data["text/html"] for o in cell.outputs if "text/html" in o.data)
    return {"stepper_fan_in.html": page_of(shown)}


def _is_of(executed: Path, notebook: Path) -> bool:
    """Say whether an executed notebook has the cells of the notebook as it is now."""
    if not executed.exists():
        return False
    return _sources(executed) == _sources(notebook)


def _sources(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells]


def _exporter(stem: str) -> Any:
    from nbconvert import MarkdownExporter

    names = f"{stem}_{{cell_index}}_{{index}}{{extension}}"
    settings = {
        "NbConvertBase": {"display_data_priority": KINDS},
        "ExtractOutputPreprocessor": {
            "output_filename_template": names,
            "extract_output_types": {"image/svg+xml", "image/png"},
        },
    }
    return MarkdownExporter(config=Config(settings))


def _cleaned(notebook: Any) -> Any:
    """Return it without what needs a kernel, and without the colours of a terminal."""
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for output in cell.outputs if _is_shown(output)]
        for output in cell.outputs:
            if "text" in output:
                output.text = NO_COLOR.sub("", output.text)
            data = output.get("data", {})
            if "text/html" in data:  # a blank line would end the HTML
                data["text/html"] = re.sub(r"\n\s*\n", "\n", data["text/html"])
    return notebook


def _is_shown(output: Any) -> bool:
    if output.output_type == "stream":
        return bool(output.text.strip())
    data = output.get("data", {})
    return WIDGET not in data and any(kind in data for kind in KINDS)


def _linked(text: str) -> str:
    """Let links to files of the repository be names, and those to notebooks lead to their pages."""
    text = re.sub(r"\]\((\d\d_\w+|start)\.ipynb\)", r"](\1.md)", text)
    return re.sub(r"\[([^]]+)\]\(\.\./[^)]+\)", r"`\1`", text)
