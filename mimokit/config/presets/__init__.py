"""Configs that are shipped with mimokit, by name."""

import difflib
from functools import cache
from pathlib import Path

from mimokit.config.errors import ConfigError, Problem

_FOLDERS = Path(__file__).parent, Path(__file__).parents[2] / "shipped" / "configs"
"""Large models that are planned; digits, which a laptop trains."""


def preset_names() -> tuple[str, ...]:
    """Return the names of the shipped configs, the large models first."""
    return tuple(_paths())


@cache  # the planner names them at every key press
def _paths() -> dict[str, Path]:
    return {path.stem: path for folder in _FOLDERS for path in sorted(folder.glob("*.yaml"))}


def preset_path(name: str) -> Path:
    """Return the file of a shipped config; raise `ConfigError` if there is none of that name."""
    names = _paths()
    if name in names:
        return names[name]
    nearest = difflib.get_close_matches(name, names, n=1)
    right = f"did you mean '{nearest[0]}'?" if nearest else f"there are {', '.join(names)}."
    sentence = f"Preset '{name}': it does not exist; {right}"
    raise ConfigError([Problem("file", "preset", name, sentence)])
