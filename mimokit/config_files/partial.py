"""Read sections of which some values are wrong, so that the rest can be checked too.

A rejected value is replaced by a stand-in (its default, or 1), and its path is kept: checks
that depend on it stay silent.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import ValidationError

from mimokit.config.errors import Problem
from mimokit.config.experiment import ExperimentConfig
from mimokit.config.messages import model_at, problems_of


@dataclass(frozen=True)
class Reading:
    """What could be read.

    Attributes:
        config: the config with stand-ins, or None where too much is missing.
        problems: one per rejected value.
        invalid_paths: the paths of the stand-ins.
    """

    config: ExperimentConfig | None
    problems: tuple[Problem, ...]
    invalid_paths: frozenset[str]


def read_sections(sections: dict[str, Any]) -> Reading:
    """Read the sections of a config as far as they can be read."""
    try:
        return Reading(ExperimentConfig.model_validate(sections), (), frozenset())
    except ValidationError as error:
        problems = problems_of(error, ExperimentConfig)
        places = [tuple(detail["loc"]) for detail in error.errors(include_url=False)]
    invalid_paths = frozenset(
        ".".join(str(key) for key in place if key != "[key]") for place in places
    )
    patched = copy.deepcopy(sections)
    if not all(_stand_in(patched, place) for place in places):
        return Reading(None, problems, invalid_paths)
    try:
        return Reading(ExperimentConfig.model_validate(patched), problems, invalid_paths)
    except ValidationError:
        return Reading(None, problems, invalid_paths)


def _stand_in(sections: dict[str, Any], place: tuple[Any, ...]) -> bool:
    """Replace the value at a place; return whether something can stand in for it."""
    keys = place[:-1] if place[-1] == "[key]" else place
    parent = _parent(sections, keys[:-1])
    if parent is None:
        return True  # went away with something above it
    owner = model_at((str(key) for key in keys[:-1]), ExperimentConfig)
    field = None if owner is None else owner.model_fields.get(str(keys[-1]))
    if field is None or not field.is_required():
        parent.pop(keys[-1], None)
        return True
    if field.annotation is int or int in get_args(field.annotation):
        parent[keys[-1]] = 1
        return True
    return False


def _parent(sections: dict[str, Any], keys: Iterable[Any]) -> dict[Any, Any] | None:
    current: Any = sections
    for key in keys:
        current = current.get(key) if isinstance(current, dict) else None
    return current if isinstance(current, dict) else None
