"""Configs that are shipped with mimokit, by name."""

from __future__ import annotations

import difflib
from pathlib import Path

from mimokit.config.errors import ConfigError, Problem

_FOLDER = Path(__file__).parent


def preset_names() -> tuple[str, ...]:
    """Return the names of the shipped configs."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def preset_path(name: str) -> Path:
    """Return the file of a shipped config; raise `ConfigError` if there is none of that name."""
    names = preset_names()
    if name in names:
        return _FOLDER / f"{name}.yaml"
    nearest = difflib.get_close_matches(name, names, n=1)
    right = f"did you mean '{nearest[0]}'?" if nearest else f"there are {', '.join(names)}."
    sentence = f"Preset '{name}': it does not exist; {right}"
    raise ConfigError([Problem("file", "preset", name, sentence)])
