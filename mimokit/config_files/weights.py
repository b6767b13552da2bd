"""Fills in the networks of modules that start from weights, from their config.json."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import ConfigError, Problem
from mimokit.units import listed

LANGUAGE_MODULE_NAMES = ("language_module", "language", "llm")
"""Names that mark the language module where networks and special tokens do not."""

SIZES = tuple(
    name
    for name, field in ModuleArchitecture.model_fields.items()
    if field.is_required() and name != "seq_length"
)
"""What every network must have; a length follows from the rest of a config."""


def fields_of_weights(model: dict[str, Any]) -> dict[str, str]:
    """Fill in the fields that modules with `weights` leave out, in place.

    A path becomes absolute, so that ranks in other folders find it. While a directory does not
    exist, a module that states its sizes keeps what it states: a plan needs no weights.

    Raises:
        ConfigError: a directory has no config.json, or a wrong one, or does not exist and the
            module leaves sizes out.
    """
    networks = model.get("module_architectures")
    derived: dict[str, str] = {}
    if not isinstance(networks, dict):
        return derived
    for name, network in networks.items():
        directory = network.get("weights") if isinstance(network, dict) else None
        if not isinstance(directory, str) or not isinstance(name, str) or not directory:
            continue
        network["weights"] = os.path.abspath(directory)
        if not os.path.exists(network["weights"]):
            _check_sizes(name, network)
            continue
        from mimokit.architecture.huggingface.stated_fields import network_fields

        stated = network_fields(network["weights"], language=_is_language(model, name))
        for field, value in stated.items():
            if field not in network:
                network[field] = value
                path = f"model.module_architectures.{name}"
                derived[f"{path}.{field}"] = f"{path}.weights"
    return derived


def counted_from(folder: Path, content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the mapping of a file whose `weights` are counted from the file's folder."""
    networks = content
    for key in ("model", "module_architectures"):
        networks = networks.get(key, {})
        if not isinstance(networks, Mapping):
            return content
    moved = {
        name: {**network, "weights": os.path.abspath(folder / network["weights"])}
        for name, network in networks.items()
        if isinstance(network, Mapping) and _is_relative(network.get("weights"))
    }
    if not moved:
        return content
    return {**content, "model": {**content["model"], "module_architectures": {**networks, **moved}}}


def _is_relative(directory: object) -> bool:
    return isinstance(directory, str) and directory != "" and not os.path.isabs(directory)


def _check_sizes(name: str, network: Mapping[str, Any]) -> None:
    missing = [field for field in SIZES if field not in network]
    if missing:
        where = network["weights"]
        sentence = (
            f"Module '{name}': weights is {where}, which does not exist; give a directory with a "
            f"config.json, or state {listed(missing)} to plan before it exists."
        )
        raise ConfigError([Problem(name, "weights", where, sentence)])


def _is_language(model: dict[str, Any], name: str) -> bool:
    stated = model.get("llm_module_name")
    if isinstance(stated, str):
        return name == stated
    ids = model.get("special_token_ids")
    encoders = ids if isinstance(ids, dict) else {}
    return name in LANGUAGE_MODULE_NAMES or (bool(encoders) and name not in encoders)
