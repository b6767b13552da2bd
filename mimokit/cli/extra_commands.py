"""Commands of rooms next to the core: each public function of a `commands.py` in `mimokit/extras`.

The command line reads the names and docstrings of these files, and imports a file when one of its
commands is asked for more than its line of help.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from mimokit.extra_rooms import FOLDER, MissingRoomError, import_extra


class CommandGroup(TyperGroup):
    """The commands of the core, then those of the rooms next to it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for command in _commands():
            self.add_command(command)


class _ExtraCommand(TyperCommand):
    def __init__(self, room: str, name: str, docstring: str | None) -> None:
        self._room = room
        super().__init__(name=name, help=docstring)

    @cached_property
    def _whole(self) -> Any:
        module = import_extra(f"{self._room}.commands", f"mimokit {self.name}")
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command(self.name)(getattr(module, str(self.name)))
        return get_command(app)

    @property
    def params(self) -> Any:
        return self._whole.params

    @params.setter
    def params(self, none: object) -> None:
        """Ignore that `Command` has none."""

    def make_context(self, *words: Any, **settings: Any) -> Any:
        return self._whole.make_context(*words, **settings)


def _commands() -> Iterator[_ExtraCommand]:
    for file in sorted(FOLDER.glob("*/commands.py")):
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_"):
                yield _ExtraCommand(file.parent.name, statement.name, ast.get_docstring(statement))


def extra_command(name: str, room: str, option: str) -> Callable[..., None]:
    """Return a command of a room next to the core that an option of another command stands for."""
    try:
        module = import_extra(f"{room}.commands", option)
    except MissingRoomError as error:
        raise typer.BadParameter(str(error)) from None
    command: Callable[..., None] = getattr(module, name)
    return command
