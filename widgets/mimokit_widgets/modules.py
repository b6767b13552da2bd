"""JavaScript modules joined to one, as a widget has to be a single file; there is no build step."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
_IMPORT = re.compile(r'^import \{[^}]*\} from "(\.[^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let) )", re.MULTILINE)


@cache
def joined_modules(entry: str) -> str:
    """Return a module and all that it imports as one module, each file once.

    Files import each other by name (`import { x } from "./file.js"`) and no two of them may
    declare the same name.

    Args:
        entry: a file next to this one; its default export becomes that of the result.
    """
    return "\n".join(_text(path) for path in _in_order(HERE / entry))


@cache
def joined_styles(*files: str) -> str:
    """Return style sheets next to this file as one."""
    return "\n".join((HERE / file).read_text(encoding="utf-8") for file in files)


def _in_order(entry: Path) -> list[Path]:
    """Return the files so that each comes behind those it imports."""
    ordered: list[Path] = []

    def visit(path: Path, above: tuple[Path, ...]) -> None:
        if path in ordered:
            return
        if path in above:
            raise ValueError(f"{path.name} imports itself through {above[-1].name}")
        for named in _IMPORT.findall(path.read_text(encoding="utf-8")):
            visit((path.parent / named).resolve(), (*above, path))
        ordered.append(path)

    visit(entry.resolve(), ())
    return ordered


def _text(path: Path) -> str:
    source = _IMPORT.sub("", path.read_text(encoding="utf-8"))
    return f"// {path.name}\n{_EXPORT.sub('', source)}"
