"""The lines of code that run a step."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import textwrap
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from mimokit.engine.stepper.tensors import frames_of
from mimokit.engine.steps import Step, StepGenerator

PACKAGE = Path(__file__).parents[2]
MOST_LINES = 12


def code_to_come(schedule: StepGenerator[Any], step: Step | None) -> str:
    """Return the code that a suspended schedule runs next: "file:number" and lines to the yield.

    Args:
        step: the step that it yielded last.
    """
    if step is not None and step.function is not None:
        code = inspect.unwrap(step.function).__code__
        return _block(code, code.co_firstlineno)
    frames = frames_of(schedule)
    if not frames:
        return ""
    frame = frames[-1]
    return _block(frame.f_code, frame.f_lineno)


def calling_line(*passed_over: str) -> str:
    """Return the innermost line of mimokit that is running, except in the given files."""
    frame: FrameType | None = sys._getframe(1)
    hidden = {__file__, *passed_over}
    while frame is not None:
        file = frame.f_code.co_filename
        if file not in hidden and Path(file).is_relative_to(PACKAGE):
            break
        frame = frame.f_back
    return "" if frame is None else located(frame.f_code.co_filename, frame.f_lineno)


def located(file: str, number: int, lines: Sequence[str] = ()) -> str:
    """Return "file:number", relative to the package, and the lines, by default that line."""
    path = Path(file)
    name = path.relative_to(PACKAGE.parent) if path.is_relative_to(PACKAGE) else path.name
    shown = lines or [linecache.getline(file, number).strip()]
    return "\n".join((f"{name}:{number}", *shown))


def _block(code: CodeType, line: int) -> str:
    """Return the statements after a line, up to the next yield or the end of the function."""
    source = linecache.getlines(code.co_filename)
    function = _function_at(code, line)
    if function is None:  # the file has been edited since it was imported
        return located(code.co_filename, line)
    last = function.end_lineno or line
    stops = [node.lineno for node in ast.walk(function) if isinstance(node, ast.Yield)]
    last = min((stop - 1 for stop in stops if stop > line), default=last)
    first = min(
        (
            node.lineno
            for node in ast.walk(function)
            if isinstance(node, ast.stmt) and line < node.lineno <= last and not _is_text(node)
        ),
        default=line,
    )
    text = textwrap.dedent("".join(source[first - 1 : last]).rstrip()).splitlines()
    return located(code.co_filename, first, text[:MOST_LINES])


def _function_at(code: CodeType, line: int) -> ast.FunctionDef | None:
    functions = (
        node for node in ast.walk(_parsed(code.co_filename)) if isinstance(node, ast.FunctionDef)
    )
    return next(
        (
            node
            for node in functions
            if node.name == code.co_name and node.lineno <= line <= (node.end_lineno or 0)
        ),
        None,
    )


def _is_text(node: ast.stmt) -> bool:
    """Whether a statement is a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@lru_cache(maxsize=16)
def _parsed(file: str) -> ast.Module:
    return ast.parse("".join(linecache.getlines(file)))
