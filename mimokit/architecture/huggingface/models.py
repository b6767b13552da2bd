"""Model descriptions from Hugging Face configs. Nothing is downloaded."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mimokit.architecture.encoders import ENCODER_NAMES, VisionEncoder
from mimokit.architecture.from_config import (
    branch_of_config,
    check_parameters,
    encoder_of_config,
    language_of_config,
)
from mimokit.architecture.huggingface.networks import Networks
from mimokit.architecture.huggingface.reading import networks_of
from mimokit.architecture.modules import PROJECTOR_NAME, Model, MultimodalModel
from mimokit.config.architecture import network_of_fields

IMAGES = "images"
"""The name of a model's vision module, as in the shipped configs."""

LANGUAGE, SUBMODULE = "language_model.", f"modality_submodules.{IMAGES}."
ENCODER, PROJECTOR = f"{SUBMODULE}{ENCODER_NAMES[VisionEncoder]}", f"{SUBMODULE}{PROJECTOR_NAME}"
"""Where Megatron's `MimoModel` has the parts of a model with a vision tower."""


def from_hf(source: str | os.PathLike[str] | Mapping[str, Any], name: str | None = None) -> Model:
    """Read a model from a Hugging Face config.

    Args:
        source: a config.json, a directory with one, or its content.
        name: of the model; by default the name of the directory or the one in the config.

    Returns:
        A language model, an encoder, or a multimodal model. Of CLIP and SigLIP the vision tower,
        of Whisper the encoder.

    Raises:
        ConfigError: there is no such file, it is not JSON, its model_type is unknown, or fields are
            missing or contradict each other.
    """
    networks, called = networks_of(source)
    model = _model(networks, name or called)
    check_parameters(model, "Hugging Face config", "config.json")
    return model


def _model(networks: Networks, name: str) -> Model:
    if networks.language is None:
        assert networks.encoder is not None
        return encoder_of_config(name, network_of_fields(networks.encoder))
    language = network_of_fields(networks.language)
    if networks.encoder is None:
        return language_of_config(name, language)
    branch = branch_of_config(IMAGES, network_of_fields(networks.encoder), language)
    if networks.features is not None:
        features = encoder_of_config(IMAGES, network_of_fields(networks.features))
        branch = replace(branch, features=features)
    return MultimodalModel(name, language_of_config(f"{name} language", language), (branch,))
