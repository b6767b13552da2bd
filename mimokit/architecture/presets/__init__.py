"""Models that are shipped with mimokit, by name.

Each file has the fields of the model's Hugging Face config that determine its size, its source,
and the number of parameters that the source publishes.
"""

import json
from pathlib import Path
from typing import Any

from mimokit.architecture.huggingface import from_hf
from mimokit.architecture.modules import Model
from mimokit.config.errors import unknown_name

_FOLDER = Path(__file__).parent


def model_names() -> tuple[str, ...]:
    """Return the names of the shipped models."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def model_facts(name: str) -> dict[str, Any]:
    """Return the shipped facts about a model: source, config, and published parameters if known.

    Raises:
        ConfigError: there is no model of that name; the message names the nearest.
    """
    if name not in model_names():
        raise unknown_name("Model", name, model_names())
    facts: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return facts


def load_model(name: str) -> Model:
    """Return a shipped model; raise `ConfigError` with the nearest name if there is none."""
    return from_hf(model_facts(name)["config"], name)
