"""Locals are named by what they are: none is called `one` or `found`."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.rows import rows

ROOT = Path(__file__).parents[1]
SAYS_NOTHING = {"one", "found"}
ROOMS_THAT_STILL_HAVE_THEM = {"cli", "cluster", "config_files", "result_files.py", "samples.py"}
"""Rooms and ground files: the list may only become shorter."""


def nameless(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of locals, of arguments too; a field of a class is none."""
    tree = ast.parse(source)
    fields = {
        id(statement.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        name = ""
        if isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = "" if id(node) in fields else node.id
        if name in SAYS_NOTHING:
            yield getattr(node, "lineno", 0), name


ROOMS = sorted(path.name for path in (ROOT / "mimokit").iterdir() if path.name[0] not in "_.")


@rows("room", *[name for name in ROOMS if name not in ROOMS_THAT_STILL_HAVE_THEM])
def test_locals_say_what_they_are(room: str) -> None:
    place = ROOT / "mimokit" / room
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in files
        if file.suffix == ".py"
        for line, name in nameless(file.read_text())
    ]
    assert not wrong


def test_a_nameless_local_is_seen() -> None:
    source = "class A:\n    found: int\n\ndef f(one):\n    found = [one for one in ()]\n"
    assert sorted(nameless(source)) == [(4, "one"), (5, "found"), (5, "one")]
