"""Commands: those of `mimokit.cli`, then public functions of `commands.py` in `mimokit/extras`.

A command is imported when it is asked for, or for its line of help.
"""

import ast
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from mimokit import cli
from mimokit.extra_rooms import FOLDER, MissingRoomError, import_extra

CORE = (
    "plan", "config", "predict", "search", "import", "export", "run", "verify", "clusters",
    "checkpoints", "frames", "measure", "analyze", "weights", "convert", "memory", "advise",
    "calibrate", "tutorial",
)  # fmt: skip
"""Commands of `mimokit.cli`, in the order of help."""

_FUNCTIONS = {"import": "import_layout"}
"""Command -> its function, where the name of the command is a word of Python."""


class CommandGroup(TyperGroup):
    """Commands that load when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        there = dir(cli)
        return [*(name for name in CORE if _function(name) in there), *_extra_rooms()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None if there is none of this name."""
        if cmd_name in CORE:
            try:
                return _loaded(cmd_name, getattr(cli, _function(cmd_name)))
            except MissingRoomError as error:
                raise MissingRoomError(f"mimokit {cmd_name}", error.room) from None
        room = _extra_rooms().get(cmd_name)
        if room is None:
            return None
        return _loaded(cmd_name, extra_command(cmd_name, room, f"mimokit {cmd_name}"))


def _function(command: str) -> str:
    return _FUNCTIONS.get(command, command)


@cache
def _loaded(name: str, function: Callable[..., None]) -> Any:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(function)
    return get_command(app)


@cache
def _extra_rooms() -> Mapping[str, str]:
    """Return command -> the room in `mimokit/extras` that has it."""
    return {
        statement.name: file.parent.name
        for file in sorted(FOLDER.glob("*/commands.py"))
        for statement in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_")
    }


def extra_command(name: str, room: str, option: str) -> Callable[..., None]:
    """Return a command of a room in `mimokit/extras`, which an option may stand for."""
    command: Callable[..., None] = getattr(import_extra(f"extras.{room}.commands", option), name)
    return command
