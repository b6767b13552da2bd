"""Fills in the networks of modules that start from checkpoints, from their config.json."""

from __future__ import annotations

import os
import pkgutil
from typing import Any

LANGUAGE_MODULE_NAMES = ("language_module", "language", "llm")
"""Names that mark the language module where networks and special tokens do not."""

FIELDS_OF_CHECKPOINT = "mimokit.architecture.huggingface.module_weights:network_fields"
"""The function that reads a config.json. Named by a string, as networks are described above."""


def fields_of_checkpoints(model: dict[str, Any]) -> dict[str, str]:
    """Fill in the fields that modules with `weights` leave out, in place.

    A path becomes absolute, so that ranks in other folders find it.

    Raises:
        ConfigError: a checkpoint has no config.json, or a wrong one.
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
        fields = pkgutil.resolve_name(FIELDS_OF_CHECKPOINT)
        language = _is_language(model, name)
        for field, value in fields(network["weights"], language=language).items():
            if field not in network:
                network[field] = value
                path = f"model.module_architectures.{name}"
                derived[f"{path}.{field}"] = f"{path}.weights"
    return derived


def _is_language(model: dict[str, Any], name: str) -> bool:
    """Tell whether a module is the language model: as the config says, or by its name."""
    stated = model.get("llm_module_name")
    if isinstance(stated, str):
        return name == stated
    ids = model.get("special_token_ids")
    encoders = ids if isinstance(ids, dict) else {}
    return name in LANGUAGE_MODULE_NAMES or (bool(encoders) and name not in encoders)
