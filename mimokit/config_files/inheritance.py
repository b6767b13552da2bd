"""A file inherits from another: its mapping is merged over the other's.

A file has at most one parent: the one that it names with a top-level `extends: other.yaml`
(relative to itself; `preset:NAME` is a shipped one), or else a `baseline.yaml` next to it.
`extends: null` means none. Parents may have parents. A baseline inherits only from what it names.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mimokit.config.errors import ConfigError, Problem
from mimokit.config.messages import describe
from mimokit.config.presets import preset_path
from mimokit.config.yaml_file import read_yaml
from mimokit.config_files.weights import counted_from

BASELINE = "baseline.yaml"
PRESET_PREFIX = "preset:"

MOST_FILES = 20
"""Files that inherit from each other in one chain."""


@dataclass(frozen=True)
class Layer:
    """One file of a chain.

    Attributes:
        name: of the file, as a user writes it: a path, or `preset:NAME`.
    """

    name: str
    path: Path
    content: Mapping[str, Any]


def _resolved(named: str, folder: Path) -> Path:
    if named.startswith(PRESET_PREFIX):
        return preset_path(named.removeprefix(PRESET_PREFIX))
    return folder / named


def read_layers(config_path: str | os.PathLike[str]) -> tuple[Layer, ...]:
    """Return a file, or `preset:NAME`, its parent, the parent of that, and so on.

    Raises:
        ConfigError: a file cannot be read, the files inherit in a circle, or there are more than
            `MOST_FILES`; the sentence shows the chain.
    """
    layers: list[Layer] = []
    name = os.fspath(config_path)
    parent: tuple[str, Path] | None = (name, _resolved(name, Path()))
    while parent is not None:
        content = _read(*parent, layers)
        inherited = counted_from(parent[1].parent, _inherited(content, lowest=not layers))
        layers.append(Layer(*parent, inherited))
        parent = _parent(layers, content)
    return tuple(layers)


def merged(layers: Sequence[Layer]) -> dict[str, Any]:
    """Return the mappings of a chain as one."""
    content: dict[str, Any] = {}
    for layer in reversed(layers):
        content = merge(content, layer.content)
    return content


def merge(beneath: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `above` merged over `beneath`: mappings key by key, other values replaced."""
    result = dict(beneath)
    for key, value in above.items():
        under = result.get(key)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            result[key] = merge(under, value)
        else:
            result[key] = value
    return result


def leaves(above: tuple[Any, ...], content: object) -> Iterator[tuple[tuple[Any, ...], object]]:
    """Yield path and value of everything in nested mappings that is not a mapping, or empty."""
    if isinstance(content, Mapping) and (content or not above):
        for key, value in content.items():
            yield from leaves((*above, key), value)
    else:
        yield above, content


def layer_of(layers: Sequence[Layer], path: Sequence[str]) -> Layer | None:
    """Return the file that a value of the merged mapping comes from, None if no file has it."""
    return next((layer for layer in layers if _has(layer.content, path)), None)


def _has(content: object, path: Sequence[str]) -> bool:
    for key in path:
        if not isinstance(content, Mapping) or key not in content:
            return False
        content = content[key]
    return True


def _inherited(content: Mapping[str, Any], lowest: bool) -> dict[str, Any]:
    """Return what takes part in a merge; the name of an experiment is its file's own."""
    left_out = ("extends",) if lowest else ("extends", "name")
    return {key: value for key, value in content.items() if key not in left_out}


def _read(name: str, path: Path, children: Sequence[Layer]) -> dict[str, Any]:
    try:
        return read_yaml(path)
    except ConfigError as error:
        if not children:
            raise
        raise _with_chain(error, [*(child.name for child in children), name]) from None


def _parent(layers: Sequence[Layer], content: Mapping[str, Any]) -> tuple[str, Path] | None:
    layer, children = layers[-1], {each.path.resolve() for each in layers}
    if "extends" not in content:
        neighbour = layer.path.parent / BASELINE
        implied = layer.path.name != BASELINE and neighbour.resolve() not in children
        return (str(neighbour), neighbour) if implied and neighbour.is_file() else None
    named = content["extends"]
    if named is None:
        return None
    if not isinstance(named, str) or not named:
        right = "write the path of a YAML file, or null"
        raise _refused(layer, named, f"extends is {describe(named)}; {right}")
    names = [each.name for each in layers]
    try:
        path = _resolved(named, layer.path.parent)
    except ConfigError as error:
        raise _with_chain(error, [*names, named]) from None
    name = named if named.startswith(PRESET_PREFIX) else os.path.normpath(path)
    chain = " extends ".join([*names, name])
    if _is_one_of(path, children):
        what = f"extends is '{named}', which closes a circle ({chain}); name another file, or null"
        raise _refused(layer, named, what)
    if len(layers) == MOST_FILES:
        what = (
            f"extends is '{named}', which makes more than {MOST_FILES} files ({chain}); join some"
        )
        raise _refused(layer, named, what)
    return name, path


def _is_one_of(path: Path, others: set[Path]) -> bool:
    try:
        return path.resolve() in others
    except (OSError, RuntimeError, ValueError):
        return False  # reading it says why


def _with_chain(error: ConfigError, names: Sequence[str]) -> ConfigError:
    chain = " extends ".join(names)
    return ConfigError(
        replace(problem, sentence=f"{problem.sentence.removesuffix('.')} ({chain}).")
        for problem in error.problems
    )


def _refused(layer: Layer, value: object, what: str) -> ConfigError:
    parent = value if isinstance(value, str) else None
    return ConfigError([Problem("file", "extends", parent, f"File '{layer.name}': {what}.")])
