"""A config as it results from its files: every value, and where it comes from."""

import copy
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mimokit.config.errors import unknown_name
from mimokit.config.experiment import ExperimentConfig
from mimokit.config_files.implications import fill_in
from mimokit.config_files.inheritance import Layer, layer_of, leaves, merged, read_layers
from mimokit.config_files.loading import SWEEP, config_from_mapping
from mimokit.config_files.sweep import combinations
from mimokit.config_files.sweep_entries import file_name
from mimokit.config_files.weights import counted_from

_WORDS = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_NO_TEXT = {"true", "false", "null", "yes", "no", "on", "off", "y", "n", "none"}
"""Words that some reader of YAML takes for something else than text."""

_WIDEST = 60
"""Characters of a line after which its comment follows directly."""


@dataclass(frozen=True)
class SourcedValue:
    """One value of a config.

    Attributes:
        value: a number, a text, a truth value, None, a list, or an empty mapping.
        source: the file that has it, or how it follows from others.
    """

    path: tuple[str, ...]
    value: object
    source: str


def written_values(config_path: str | os.PathLike[str]) -> tuple[SourcedValue, ...]:
    """Return what a file and its parents say, and which of them says it; nothing is checked."""
    layers = read_layers(config_path)
    return tuple(
        SourcedValue(tuple(map(str, path)), value, _file_of(layers, path) or "")
        for path, value in leaves((), merged(layers))
    )


def resolved_values(
    config_path: str | os.PathLike[str],
    *,
    experiment: str | None = None,
    world_size: int | None = None,
) -> tuple[SourcedValue, ...]:
    """Return every value of the config that results: written, implied by others, or a default.

    Args:
        experiment: one of those of its `sweep`, by name; of a file without one its own name.
        world_size: ranks of the world, to work out missing data_parallel sizes.
    """
    layers = read_layers(config_path)
    if experiment is not None:
        layers = _of_experiment(layers, experiment)
    content = merged(layers)
    stem = layers[0].path.stem
    config = config_from_mapping(content, name=stem, world_size=world_size, world_may_be_open=True)
    sources = _Sources(layers, _implied(content), config)
    if world_size is not None or config.model.needed_world_size is not None:
        config.finalize(world_size)
    values = leaves((), config.to_mapping())
    return tuple(SourcedValue(path, value, sources.of(path)) for path, value in values)


def to_commented_yaml(values: Sequence[SourcedValue]) -> str:
    """Return values as YAML that loads to the same config, each with its source in a comment."""
    lines = [("extends: null", "all that is inherited stands below")]
    before: tuple[str, ...] = ()
    for value in values:
        pairs = itertools.takewhile(
            lambda pair: pair[0] == pair[1], zip(before, value.path, strict=False)
        )
        shared = sum(1 for _ in pairs)
        for depth, key in enumerate(value.path[shared:-1], start=shared):
            lines.append((f"{'  ' * depth}{_in_yaml(key)}:", ""))
        *above, key = value.path
        lines.append((f"{'  ' * len(above)}{_in_yaml(key)}: {_in_yaml(value.value)}", value.source))
        before = value.path[:-1]
    width = min(_WIDEST, max(len(text) for text, source in lines if source))
    return "".join(
        f"{text:<{width}}  # {' '.join(source.split())}\n" if source else f"{text}\n"
        for text, source in lines
    )


@dataclass(frozen=True)
class _Sources:
    """Says where the values of a config come from."""

    layers: tuple[Layer, ...]
    implied: Mapping[str, str]
    config: ExperimentConfig

    def of(self, path: tuple[str, ...]) -> str:
        file = _file_of(self.layers, path)
        if file is not None:
            return file
        dotted = ".".join(path)
        if dotted in self.implied:
            return f"implied by {self.implied[dotted]}"
        offset = ("model", "llm_rank_offset")
        if path[-1] == "rank_offset" and path[-2] == self.config.model.llm_module_name:
            moved = _file_of(self.layers, offset)
            return "default" if moved is None else f"{moved} (llm_rank_offset)"
        if path == ("name",):
            return "name of the file"
        return "worked out from the ranks" if path[-1] == "data_parallel" else "default"


def _of_experiment(layers: tuple[Layer, ...], experiment: str) -> tuple[Layer, ...]:
    """Return the layers of one experiment of a file; what a sweep sets is a layer over the file."""
    lowest, sweep = layers[0], merged(layers).get(SWEEP)
    stem = lowest.path.stem
    if sweep is None and experiment == stem:
        return layers
    experiments = () if sweep is None else combinations(sweep, file_name(stem))
    by_name = {combination.name: combination for combination in experiments}
    if experiment not in by_name:
        raise unknown_name("Experiment", experiment, by_name or [stem])
    swept = counted_from(lowest.path.parent, by_name[experiment].content)
    content = {**swept, "name": experiment, SWEEP: None}
    return (Layer(f"{lowest.name} (sweep)", lowest.path, content), *layers)


def _file_of(layers: Sequence[Layer], path: Sequence[str]) -> str | None:
    layer = layer_of(layers, path)
    return None if layer is None else layer.name


def _implied(content: Mapping[str, Any]) -> dict[str, str]:
    sections = copy.deepcopy(dict(content))
    sections.setdefault("runtime", {})
    return fill_in(sections)


def _in_yaml(value: object) -> str:
    """Return a value on one line of YAML; JSON is YAML, and plain words need no quotes."""
    if isinstance(value, str) and _WORDS.fullmatch(value) and value.lower() not in _NO_TEXT:
        return value
    return json.dumps(value, ensure_ascii=not str(value).isprintable(), default=str)
