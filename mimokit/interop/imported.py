"""The content of another tool's file, and how its options and numbers are read.

Python is read without running it.
"""

from __future__ import annotations

import ast
import operator
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mimokit.architecture import LanguageModel
from mimokit.config.errors import ConfigError, Problem
from mimokit.prediction import Layout, Workload
from mimokit.units import shown

LARGEST = 2**40
"""The largest number that is accepted; no size and no number of tokens or samples reaches it."""

MEGATRON_LM = "Megatron-LM arguments"
"""The name of a command line in messages."""

Options = Mapping[str, Sequence[str]]
"""Flag without dashes in front -> its values."""

_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_ENVIRONMENT = ("os.environ.get", "os.getenv", "environ.get", "getenv")


@dataclass(frozen=True)
class Imported:
    """The content of a file.

    Attributes:
        workload: what one step computes, or None if the file does not state it.
        model: the language model, or None if the file does not describe it.
        notes: a sentence for everything that was assumed or ignored.
    """

    layout: Layout
    workload: Workload | None = None
    model: LanguageModel | None = None
    notes: tuple[str, ...] = ()


def refused(where: str, field: str, value: object, sentence: str) -> ConfigError:
    """Return the refusal of something in a file."""
    return ConfigError([Problem(where, field, value, f"{where}: {sentence}")])


def options_of(arguments: str | Sequence[str]) -> Options:
    """Return the options of a command line; flags are written with - or _.

    Megatron-LM has several hundred flags and launchers add more, so every flag takes the words up
    to the next flag.

    Raises:
        ConfigError: its quotes do not close.
    """
    words = _words(arguments) if isinstance(arguments, str) else arguments
    options: dict[str, list[str]] = {}
    last: list[str] = []
    for argument in words:
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            last = options[name.replace("_", "-")] = [value] if equals else []
        else:
            last.append(argument)
    return options


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        sentence = f"they are not a command line ({str(error).lower()}); give the words of one."
        raise refused(MEGATRON_LM, "arguments", text[:60], sentence) from None


def number(options: Options, flag: str, missing: int | None = None) -> int:
    """Return the value of a flag, or `missing` if it is not given.

    Raises:
        ConfigError: it is not a whole number from 1 to `LARGEST`.
    """
    if flag not in options and missing is not None:
        return missing
    text = word(options, flag)
    value = whole_number(text)
    if value is None or value < 1:
        large = value is None and text.isdecimal()
        right = f"at most {LARGEST:,}" if large else "a whole number of at least 1"
        raise refused(MEGATRON_LM, flag, text, f"--{flag} is {shown(text)}; it must be {right}.")
    return value


def real(options: Options, flag: str, missing: float) -> float:
    """Return the value of a flag, or `missing` if it is not given.

    Raises:
        ConfigError: it is not a number above 0.
    """
    text = word(options, flag, str(missing))
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= LARGEST:
        right = "a number above 0"
        raise refused(MEGATRON_LM, flag, text, f"--{flag} is {shown(text)}; it must be {right}.")
    return value


def word(options: Options, flag: str, missing: str = "") -> str:
    """Return the first value of a flag."""
    return (*options.get(flag, ()), missing)[0]


def whole_number(text: str) -> int | None:
    """Return a text as a whole number, or None if it is not one or is above `LARGEST`."""
    if not text.isdecimal() or len(text.lstrip("0")) > len(str(LARGEST)):
        return None
    value = int(text)
    return value if value <= LARGEST else None


def constants_of(tree: ast.Module) -> Mapping[str, ast.expr]:
    """Return the module-level names of a file and their values."""
    values: dict[str, ast.expr] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target, value = statement.target, statement.value
        else:
            continue
        if isinstance(target, ast.Name):
            values[target.id] = value
    return values


def number_at(node: ast.expr, names: Mapping[str, ast.expr], where: str, depth: int = 0) -> int:
    """Return the value of an expression that is a whole number.

    Numbers, module-level names, `+ - * //`, `int(...)` and the default of an environment variable
    are understood.

    Raises:
        ConfigError: anything else, or a number beyond `LARGEST`, with its line.
    """
    value = _number_at(node, names, where, depth)
    if abs(value) > LARGEST:
        sentence = f"line {node.lineno} has a number above {LARGEST:,}; correct it."
        raise refused(where, "value", None, sentence)
    return value


def _number_at(node: ast.expr, names: Mapping[str, ast.expr], where: str, depth: int) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id in names and depth < 20:
        return number_at(names[node.id], names, where, depth + 1)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = (number_at(n, names, where, depth + 1) for n in (node.left, node.right))
        if not (isinstance(node.op, ast.FloorDiv) and right == 0):
            return int(_OPERATIONS[type(node.op)](left, right))
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        if called == "int" and len(node.args) == 1:
            return _whole(node.args[0], names, where, depth)
    text = _source_of(node)
    raise refused(
        where,
        "value",
        text,
        f"line {node.lineno} has '{text}' where a whole number is read; write the number, or a "
        "module-level name for it.",
    )


def _source_of(node: ast.expr) -> str:
    try:
        text = ast.unparse(node)
    except (ValueError, RecursionError):  # a number of thousands of digits, or deep nesting
        return "..."
    return text if len(text) <= 80 else f"{text[:77]}..."


def _whole(node: ast.expr, names: Mapping[str, ast.expr], where: str, depth: int) -> int:
    """Return the argument of `int(...)`: a number, its text, or a variable's default."""
    looked_up = isinstance(node, ast.Call) and ast.unparse(node.func) in _ENVIRONMENT
    if looked_up and isinstance(node, ast.Call) and len(node.args) == 2:
        return _whole(node.args[1], names, where, depth + 1)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        value = whole_number(node.value)
        if value is not None:
            return value
    return number_at(node, names, where, depth + 1)


def names_environment(node: ast.AST) -> bool:
    """Return whether a value depends on environment variables."""
    calls = (call for call in ast.walk(node) if isinstance(call, ast.Call))
    return any(ast.unparse(call.func) in _ENVIRONMENT for call in calls)
