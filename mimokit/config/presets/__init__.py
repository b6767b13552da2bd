"""Configs that are shipped with mimokit, by name."""

from functools import cache
from pathlib import Path

from mimokit.config.errors import unknown_name

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
    raise unknown_name("Preset", name, names)
