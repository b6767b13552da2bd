"""A suspended schedule: its tensors by name, and the lines of code that it runs next."""

import ast
import inspect
import linecache
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from mimokit.engine.pipeline.executor import StageExecutor
from mimokit.engine.steps import Step, StepGenerator

WALKED = ("mimokit.engine.pipeline",)
"""Modules whose dataclasses are searched; the model and the training state are not."""
_DEEPEST = 7


def suspended_frames(schedule: StepGenerator[Any]) -> list[FrameType]:
    """Return the frames of a suspended schedule, the outermost first."""
    frames: list[FrameType] = []
    generator: Any = schedule
    while generator is not None and getattr(generator, "gi_frame", None) is not None:
        frames.append(generator.gi_frame)
        generator = generator.gi_yieldfrom
    return frames


def executor_of(schedule: StepGenerator[Any]) -> StageExecutor | None:
    """Return the executor that runs in a suspended schedule, or None."""
    for frame in suspended_frames(schedule):
        owner = frame.f_locals.get("self")
        if isinstance(owner, StageExecutor):
            return owner
    return None


def tensors_of(schedule: StepGenerator[Any]) -> dict[str, torch.Tensor]:
    """Return the tensors in a suspended schedule's variables, each once.

    A name is the variable, then fields, keys or indices, joined by dots; gradients of leaves end in
    ".grad". Names of a pipeline's tensors begin with "microbatch" and its number.
    """
    tensors: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for frame in suspended_frames(schedule):
        values = dict(frame.f_locals)
        if isinstance(values.get("self"), StageExecutor):
            values |= values.pop("self").tensors()
        for name, value in values.items():
            for path, tensor in _walk(name, value, 0):
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    tensors[path] = tensor
    return tensors


def _walk(path: str, value: Any, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
        if value.is_leaf and value.grad is not None:
            yield f"{path}.grad", value.grad
        return
    for name, part in _parts(value) if depth < _DEEPEST else ():
        yield from _walk(f"{path}.{name}", part, depth + 1)


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)
    elif _is_open(value):
        yield from ((field.name, getattr(value, field.name)) for field in fields(value))


def _is_open(value: Any) -> bool:
    ours = type(value).__module__.startswith(WALKED)
    return ours and is_dataclass(value) and not hasattr(value, "plan")


PACKAGE = Path(__file__).parents[2]
MOST_LINES = 12


def code_to_come(schedule: StepGenerator[Any], step: Step | None) -> str:
    """Return the code that a suspended schedule runs next: "file:number" and lines to the yield."""
    if step is not None and step.function is not None:
        code = inspect.unwrap(step.function).__code__
        return _block(code, code.co_firstlineno)
    frames = suspended_frames(schedule)
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
            if isinstance(node, ast.stmt) and line < node.lineno <= last and not _is_docstring(node)
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


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@lru_cache(maxsize=16)
def _parsed(file: str) -> ast.Module:
    return ast.parse("".join(linecache.getlines(file)))
