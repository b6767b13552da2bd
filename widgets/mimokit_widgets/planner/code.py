"""A config as Python and as a command line."""

from __future__ import annotations

import json
import shlex
from typing import Any

from pydantic import BaseModel

from mimokit.config import ExperimentConfig
from mimokit.planning.types import LayoutPlan

WIDTH = 88


def as_python(config: ExperimentConfig) -> str:
    """Return Python that makes an equal config and its plan."""
    classes = sorted({type(record).__name__ for record in _records(config)})
    imports = "".join(f"    {name},\n" for name in classes)
    return (
        f"import mimokit\nfrom mimokit.config import (\n{imports})\n\n"
        f"config = {_written(config, 0)}\nplan = mimokit.plan(config)\n"
    )


def as_torchrun(config: ExperimentConfig, plan: LayoutPlan, ranks_per_node: int, file: str) -> str:
    """Return the command that trains the layout, once the config is in a file.

    torchrun wants as many processes on every node: the most that are at most `ranks_per_node`.
    """
    here = next(n for n in range(ranks_per_node, 0, -1) if plan.world_size % n == 0)
    if plan.world_size <= ranks_per_node:
        here = plan.world_size
    nodes = plan.world_size // here
    several = "" if nodes == 1 else f" --nnodes {nodes} --rdzv-backend c10d"
    several += "" if nodes == 1 else " --rdzv-endpoint FIRST_NODE:29500"
    module = "-m mimokit.experiment"
    return f"torchrun{several} --nproc-per-node {here} {module} {shlex.quote(file)}"


def _records(value: object) -> list[BaseModel]:
    if isinstance(value, BaseModel):
        values = [getattr(value, name) for name in type(value).model_fields]
        return [value, *(record for each in values for record in _records(each))]
    if isinstance(value, dict):
        return [record for each in value.values() for record in _records(each)]
    return []


def _written(value: Any, indent: int) -> str:
    if isinstance(value, BaseModel):
        fields = {
            name: field
            for name in type(value).model_fields
            if (field := getattr(value, name)) != _default(value, name)
        }
        entries = [f"{name}={_written(each, indent + 4)}" for name, each in fields.items()]
        return _bracketed(f"{type(value).__name__}(", entries, ")", indent)
    if isinstance(value, dict):
        entries = [
            f"{_written(key, 0)}: {_written(each, indent + 4)}" for key, each in value.items()
        ]
        return _bracketed("{", entries, "}", indent)
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _default(record: BaseModel, name: str) -> object:
    field = type(record).model_fields[name]
    return ... if field.is_required() else field.get_default(call_default_factory=True)


def _bracketed(begin: str, entries: list[str], end: str, indent: int) -> str:
    line = begin + ", ".join(entries) + end
    if "\n" not in line and indent + len(line) <= WIDTH:
        return line
    inside = "".join(f"{' ' * (indent + 4)}{entry},\n" for entry in entries)
    return f"{begin}\n{inside}{' ' * indent}{end}"
