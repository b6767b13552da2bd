"""The tensors of a suspended schedule, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import FrameType
from typing import Any

import torch

from mimokit.engine.pipeline.executor import StageExecutor
from mimokit.engine.steps import StepGenerator

WALKED = ("mimokit.engine.pipeline",)
"""Modules whose dataclasses are searched; the model and the training state are not."""
_DEEPEST = 6


def frames_of(schedule: StepGenerator[Any]) -> list[FrameType]:
    """Return the frames of a suspended schedule, the outermost first."""
    frames: list[FrameType] = []
    generator: Any = schedule
    while generator is not None and getattr(generator, "gi_frame", None) is not None:
        frames.append(generator.gi_frame)
        generator = generator.gi_yieldfrom
    return frames


def executor_of(schedule: StepGenerator[Any]) -> StageExecutor | None:
    """Return the executor that runs in a suspended schedule, or None."""
    for frame in frames_of(schedule):
        owner = frame.f_locals.get("self")
        if isinstance(owner, StageExecutor):
            return owner
    return None


def tensors_of(schedule: StepGenerator[Any]) -> dict[str, torch.Tensor]:
    """Return the tensors in a suspended schedule's variables, each once.

    A name is the variable, then fields, keys or indices, joined by dots; gradients of leaves end in
    ".grad". Names of a pipeline's tensors begin with "microbatch" and its number.
    """
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for frame in frames_of(schedule):
        values = dict(frame.f_locals)
        if isinstance(values.get("self"), StageExecutor):
            values |= values.pop("self").tensors()
        for name, value in values.items():
            for path, tensor in _walk(name, value, 0):
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    found[path] = tensor
    return found


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
    """Whether a value is a dataclass to search."""
    ours = type(value).__module__.startswith(WALKED)
    return ours and is_dataclass(value) and not hasattr(value, "plan")
