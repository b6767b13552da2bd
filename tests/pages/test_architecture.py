"""`docs/architecture.md` tells a run by files and names that exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.rows import rows

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
ROW = re.compile(r"^\| (\d+) \| `([\w/.]+)` \| (.+?) \| .+ \|$", re.MULTILINE)
FILES = 25, 30
"""At least and at most: fewer skip a hand-over, and more are no spine."""


def wrong_rows(page: str) -> list[str]:
    """Return `file: name` of each name of a row that its file does not have."""
    return [
        f"{path}: {name}"
        for _, path, names in ROW.findall(page)
        for name in re.findall(r"`([\w.]+)`", names)
        if name not in names_of(ROOT / path)
    ]


def names_of(file: Path) -> set[str]:
    if not file.exists():
        return set()
    if file.suffix != ".py":
        return set(re.findall(r"^(\w+):", file.read_text(), re.MULTILINE))
    return set(_defined(ast.parse(file.read_text()), ""))


def _defined(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[str]:
    for statement in node.body:
        match statement:
            case ast.ClassDef(name=name):
                yield prefix + name
                yield from _defined(statement, f"{name}.")
            case ast.FunctionDef(name=name):
                yield prefix + name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name


def test_files_and_names_exist() -> None:
    assert wrong_rows(PAGE) == []


@rows(
    "right, wrong", ("`plan_checked`", "`plan_anything`"), ("mimokit/samples.py", "mimokit/gone.py")
)
def test_a_wrong_name_is_found(right: str, wrong: str) -> None:
    assert wrong_rows(PAGE.replace(right, wrong))


def test_rows_are_numbered_in_reading_order() -> None:
    numbers = [int(number) for number, *_ in ROW.findall(PAGE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert FILES[0] <= len(numbers) <= FILES[1]
