"""A config as the text of a file that says each fact once."""

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mimokit.config import ConfigError, ExperimentConfig
from mimokit.config.yaml_file import yaml_text
from mimokit.config_files.inheritance import BASELINE
from mimokit.config_files.loading import config_from_mapping

STATED = (("name",), ("model", "deployment_mode"), ("model", "llm_module_name"))
"""What a reader looks for first: it stands there, implied or not."""


def concise_mapping(config: ExperimentConfig) -> dict[str, Any]:
    """Return the sections of a file that loads to an equal config, without what is implied.

    A value is left out where loading works out the same one: it is a default, or follows from the
    others.
    """
    wanted = config.to_mapping()
    content = copy.deepcopy(wanted)
    for path in list(_paths(wanted)):
        shorter = copy.deepcopy(content)
        _remove(shorter, path)
        if path not in STATED and _loads_to(shorter, wanted):
            content = shorter
    return content


def written_text(config: ExperimentConfig, path: Path | None = None) -> str:
    """Return the concise YAML text of a config.

    Args:
        path: of the file. `extends: null` is written if its folder has a `baseline.yaml`, from
            which the file would inherit otherwise, and if the path is not known.
    """
    content = concise_mapping(config)
    would_inherit = path is None or (path.parent / BASELINE).exists()
    return yaml_text({"extends": None, **content} if would_inherit else content)


def _paths(content: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in content.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _paths(value, (*above, key))


def _remove(content: dict[str, Any], path: tuple[str, ...]) -> None:
    for key in path[:-1]:
        if key not in content:
            return
        content = content[key]
    content.pop(path[-1], None)


def _loads_to(content: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    try:
        config = config_from_mapping(copy.deepcopy(dict(content)), world_may_be_open=True)
    except ConfigError:
        return False
    return config.to_mapping() == wanted
