"""Published models as the networks of a config."""

from functools import lru_cache
from typing import Any

from mimokit.architecture import (
    AudioEncoder,
    LanguageModel,
    VisionEncoder,
    load_model,
    model_names,
)

LANGUAGE, ENCODER = "language", "encoder"


@lru_cache(maxsize=1)
def published_networks() -> dict[str, list[str]]:
    """Return the names of models that are one module, for both kinds of module."""
    names: dict[str, list[str]] = {LANGUAGE: [], ENCODER: []}
    for name in model_names():
        model = load_model(name)
        if isinstance(model, LanguageModel):
            names[LANGUAGE].append(name)
        elif isinstance(model, VisionEncoder | AudioEncoder):
            names[ENCODER].append(name)
    return names


def network_fields(name: str, seq_length: int, tensor_parallel: int = 1) -> dict[str, Any]:
    """Return the architecture section of a published model.

    Args:
        name: one of `published_networks`.
        seq_length: tokens of a sample, for a language model.
        tensor_parallel: of the module; a vocabulary that it does not divide is said to be padded.

    Raises:
        ConfigError: the model does not exist.
        ValueError: it is made of several modules.
    """
    model = load_model(name)
    if isinstance(model, LanguageModel):
        return model.section(seq_length, tensor_parallel)
    if isinstance(model, VisionEncoder | AudioEncoder):
        return model.network.section()
    raise ValueError(f"'{name}' is made of several modules; choose one of them.")
