"""The values in the planner's fields: a config that need not be valid."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mimokit.config import ConfigError, ExperimentConfig, PredictionConfig
from mimokit.config_files import config_from_mapping, load_preset
from mimokit.config_files.inheritance import read_with_parents, resolve_path
from mimokit.config_files.loading import SWEEP
from mimokit_widgets.planner.paths import PREDICTION, mapping_at

RANKS_PER_NODE = 8


@dataclass(frozen=True)
class Draft:
    """The mapping of a YAML file, and the planner's two fields that no config has.

    Attributes:
        content: sections model, data and runtime; any value may be wrong.
        world_size: ranks of the world, or None for as many as the modules need.
        ranks_per_node: ranks that share a machine.
    """

    content: Mapping[str, Any] = field(default_factory=dict)
    world_size: object = None
    ranks_per_node: object = RANKS_PER_NODE

    def with_content(self, content: Mapping[str, Any]) -> Draft:
        """Return the draft with other sections."""
        return replace(self, content=content)

    def copied(self) -> dict[str, Any]:
        """Return the sections as dicts that may be changed."""
        return copy.deepcopy(dict(self.content))


def same_layout(one: Draft, other: Draft) -> bool:
    """Return whether two drafts differ in nothing but what predictions suppose."""
    if one is other:
        return True
    plain = [replace(each, content={**each.content, "prediction": None}) for each in (one, other)]
    return plain[0] == plain[1]


def content_of(source: ExperimentConfig | Mapping[str, Any] | str | os.PathLike[str]) -> Any:
    """Return the sections of a config, a mapping, the path of a YAML file or `preset:NAME`.

    A config that can be read comes back in its full form; one that cannot, as it stands.

    Raises:
        ConfigError: the file cannot be read as YAML.
        TypeError: it is none of these.
    """
    if isinstance(source, ExperimentConfig):
        return source.to_mapping()
    if isinstance(source, Mapping):
        return canonical(source)
    if isinstance(source, str | os.PathLike):
        path = resolve_path(os.fspath(source), Path())
        return canonical(read_with_parents(path), path.stem)
    raise TypeError(
        f"a config is an ExperimentConfig, a mapping or the path of a YAML file, not {source!r}"
    )


def canonical(content: Mapping[str, Any], name: str = "experiment") -> dict[str, Any]:
    """Return the full form of sections that can be read, else a copy of them as they stand.

    A sweep is left out: a draft is one layout.
    """
    one = {key: value for key, value in content.items() if key != SWEEP}
    try:
        return config_from_mapping(one, name=name, world_may_be_open=True).to_mapping()
    except ConfigError:
        given = copy.deepcopy(one)
        given.pop("extends", None)
        given.setdefault("name", name)
        return given


def supposed_of(draft: Draft) -> PredictionConfig:
    """Return GPU, software and price that a draft supposes; a missing or wrong field is None."""
    section = mapping_at(draft.content, PREDICTION)
    found = PredictionConfig()
    for name in ("gpu", "software", "price_per_gpu_hour"):
        with suppress(ConfigError):
            setattr(found, name, section.get(name))
    return found


START = "llava_7b_colocated"


def start() -> dict[str, Any]:
    """Return the sections of a sensible start: a vision-language model on eight ranks."""
    return load_preset(START).to_mapping()
