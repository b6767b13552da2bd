"""JavaScript modules and style sheets joined to one text: a widget and a page have one each."""

import re
from functools import cache
from pathlib import Path

BROWSER = Path(__file__).parent
SHARED = "mimokit/"
"""What the path of a file of this folder begins with, in an import of another folder."""
RUNS = "mimokit/runs_view/"
"""The same of the view of runs."""
_IMPORT = re.compile(r'^(?:import|export) \{[^}]*\} from "([^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let) )", re.MULTILINE)
_STYLE = re.compile(r'^@import "([^"]+)";\n', re.MULTILINE)


@cache
def joined_module(*entries: Path) -> str:
    """Return modules and all that they import as one module, each file once.

    Files import each other by name (`import { x } from "./file.js"`) and no two of them may
    declare the same name. A default export becomes that of the result.

    Raises:
        ValueError: files import each other in a circle.
    """
    ordered = dict.fromkeys(path for entry in entries for path in _in_order(entry, _IMPORT))
    return "\n".join(map(_text, ordered))


@cache
def styles_of(*files: Path) -> str:
    """Return style sheets as one, each behind those that it imports."""
    ordered = dict.fromkeys(path for file in files for path in _in_order(file, _STYLE))
    return "\n".join(_STYLE.sub("", path.read_text(encoding="utf-8")) for path in ordered)


def imported(file: Path, path: str) -> Path:
    """Return the file that another one imports by a path."""
    if path.startswith(RUNS):
        return BROWSER.parent / "runs_view" / path.removeprefix(RUNS)
    if path.startswith(SHARED):
        return BROWSER / path.removeprefix(SHARED)
    return (file.parent / path).resolve()


def _in_order(entry: Path, imports: re.Pattern[str]) -> list[Path]:
    ordered: list[Path] = []

    def visit(path: Path, above: tuple[Path, ...]) -> None:
        if path in ordered:
            return
        if path in above:
            raise ValueError(f"{path.name} imports itself through {above[-1].name}")
        for named in imports.findall(path.read_text(encoding="utf-8")):
            visit(imported(path, named), (*above, path))
        ordered.append(path)

    visit(entry.resolve(), ())
    return ordered


def _text(path: Path) -> str:
    source = _IMPORT.sub("", path.read_text(encoding="utf-8"))
    return f"// {path.name}\n{_EXPORT.sub('', source)}"
