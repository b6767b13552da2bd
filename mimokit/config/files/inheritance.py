"""A file inherits from another: its mapping is merged over the other's.

A file has at most one parent: the one that it names with a top-level `extends: other.yaml`
(relative to itself; `preset:NAME` is a shipped one), or else a `baseline.yaml` next to it.
`extends: null` means none. Parents may have parents. A baseline inherits only from what it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mimokit.config.errors import ConfigError, Problem
from mimokit.config.files.yaml_file import read_yaml
from mimokit.config.presets import preset_path

BASELINE = "baseline.yaml"
PRESET_PREFIX = "preset:"


def resolve_path(named: str, folder: Path) -> Path:
    """Return the file that `preset:NAME`, or a path counted from a folder, names.

    Raises:
        ConfigError: there is no such preset.
    """
    if named.startswith(PRESET_PREFIX):
        return preset_path(named.removeprefix(PRESET_PREFIX))
    return folder / named


def read_with_parents(path: Path) -> dict[str, Any]:
    """Return the mapping of a file merged over those of its parents, without `extends`.

    Raises:
        ConfigError: a file cannot be read, or the files inherit in a circle.
    """
    return _read(path, ())


def merge(beneath: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `above` merged over `beneath`: mappings key by key, other values replaced."""
    merged = dict(beneath)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            merged[key] = merge(under, value)
        else:
            merged[key] = value
    return merged


def _read(path: Path, children: tuple[Path, ...]) -> dict[str, Any]:
    content = read_yaml(path)
    parent = _parent(path, content, children)
    content.pop("extends", None)
    if parent is None:
        return content
    chain = (*children, path.resolve())
    if parent.resolve() in chain:
        raise _refuse(path, parent.name, "the files inherit in a circle, name another")
    beneath = _read(parent, chain)
    beneath.pop("name", None)  # a name is the file's own
    return merge(beneath, content)


def _parent(path: Path, content: dict[str, Any], children: tuple[Path, ...]) -> Path | None:
    if "extends" in content:
        named = content["extends"]
        if named is None:
            return None
        if not isinstance(named, str) or not named:
            raise _refuse(path, named, "extends must be the path of a YAML file, or null")
        return resolve_path(named, path.parent)
    beside = path.parent / BASELINE
    if path.name == BASELINE or beside.resolve() in children or not beside.is_file():
        return None
    return beside


def _refuse(path: Path, value: object, what: str) -> ConfigError:
    sentence = f"File '{path}': extends is {value!r}; {what}."
    return ConfigError([Problem("file", "extends", value, sentence)])
