"""What calling a function of mimokit imports, as far as its text tells.

A function reaches what it names: definitions of its file, and what is imported by these names, in
the file or in the function. A file that is imported counts whole, but an import inside of a
function counts only where that function is reached. Methods are reached with their class. Imports
for type checking do not count; a name of a lazy package is imported from where it is defined.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Place = tuple[str, str]
"""A module, and the name of a function or class at the top of it; or `BODY`."""
BODY = ""
"""What runs when a module is imported."""


@dataclass
class Part:
    """What the text of a definition names, and by which name it imports what."""

    names: set[str] = field(default_factory=set)
    imports: dict[str, Place] = field(default_factory=dict)

    def read(self, node: ast.AST) -> None:
        """Add what is inside of a node."""
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for statement in node.orelse:
                self.read(statement)
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                self.imports[alias.asname or alias.name] = alias.name, BODY
                self.imports[alias.asname or name] = name, BODY
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                self.imports[alias.asname or alias.name] = node.module or "", alias.name
        elif isinstance(node, ast.Name | ast.Attribute):
            self.names.add(ast.unparse(node))
        for child in ast.iter_child_nodes(node):
            self.read(child)


@dataclass
class Module:
    """A file.

    Attributes:
        parts: definition -> what it names; `BODY` -> what is outside of definitions.
        lazy: public name of a lazy package -> the module that has it.
    """

    lines: int
    parts: dict[str, Part]
    lazy: dict[str, str]


def modules_in(*packages: Path) -> dict[str, Module]:
    """Return the modules of some packages by name."""
    return {
        ".".join(file.relative_to(package.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): read_module(file.read_text(encoding="utf-8"))
        for package in packages
        for file in package.rglob("*.py")
    }


def read_module(source: str) -> Module:
    """Return what a file has."""
    parts, lazy = {BODY: Part()}, {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            parts[statement.name] = Part()
            parts[statement.name].read(statement)
            if isinstance(statement, ast.FunctionDef) and statement.decorator_list:
                parts[BODY].names.add(statement.name)  # which may register it
        else:
            parts[BODY].read(statement)
            if isinstance(statement, ast.If):
                lazy |= {
                    alias.name: block.module or ""
                    for block in statement.body
                    if isinstance(block, ast.ImportFrom)
                    for alias in block.names
                }
    return Module(len(source.splitlines()), parts, lazy if "lazy_names(" in source else {})


def reached(modules: Mapping[str, Module], starts: Iterable[Place]) -> set[str]:
    """Return the modules that some definitions import when they run."""
    seen: set[Place] = set()
    waiting = list(starts)
    while waiting:
        place = waiting.pop()
        if place in seen or place[0] not in modules:
            continue
        seen.add(place)
        waiting += _next(modules, place)
    return {module for module, _ in seen}


def _next(modules: Mapping[str, Module], place: Place) -> Iterator[Place]:
    module, definition = place
    yield module, BODY
    yield module.rpartition(".")[0], BODY
    parts = modules[module].parts
    part, body = parts[definition], parts[BODY]
    for target, name in part.imports.values():
        yield target, BODY
        if f"{target}.{name}" in modules:
            yield f"{target}.{name}", BODY
    imports = {**body.imports, **part.imports}
    for name in part.names:
        first, *attributes = name.split(".")
        if first in parts:
            yield module, first
        elif first in imports:
            yield from _along(modules, imports[first], attributes)


def _along(
    modules: Mapping[str, Module], place: Place, attributes: Iterable[str]
) -> Iterator[Place]:
    """Yield where a name is defined, or the attributes of a module that it stands for."""
    place = _home(modules, *place)
    yield place
    for attribute in attributes:
        if place[1] != BODY or place[0] not in modules:
            return
        place = _home(modules, place[0], attribute)
        yield place


def _home(modules: Mapping[str, Module], module: str, name: str) -> Place:
    """Return where a name of a module is defined."""
    if name == BODY or module not in modules:
        return module, BODY
    if f"{module}.{name}" in modules:
        return f"{module}.{name}", BODY
    if name in modules[module].parts:
        return module, name
    home = modules[module].lazy.get(name, module)
    if home != module:
        return _home(modules, home, name)
    imports = modules[module].parts[BODY].imports
    return _home(modules, *imports[name]) if name in imports else (module, BODY)
