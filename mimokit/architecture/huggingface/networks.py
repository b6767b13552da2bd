"""The networks that a Hugging Face config describes, as fields of a config, and their model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mimokit.architecture.from_config import (
    branch_of_config,
    encoder_of_config,
    language_of_config,
    network_of_fields,
)
from mimokit.architecture.modules import Model, MultimodalModel

IMAGES = "images"
"""The name of a model's vision module, as in the shipped configs."""


@dataclass(frozen=True)
class Networks:
    """Fields of the networks of a model; None where it has none.

    Attributes:
        features: of the part of the encoder whose output the projector takes; None: all of it.
    """

    language: Mapping[str, Any] | None = None
    encoder: Mapping[str, Any] | None = None
    features: Mapping[str, Any] | None = None

    def model(self, name: str) -> Model:
        """Return what they describe; of several modules the encoder is called `IMAGES`."""
        if self.language is None:
            assert self.encoder is not None
            return encoder_of_config(name, network_of_fields(self.encoder))
        language = network_of_fields(self.language)
        if self.encoder is None:
            return language_of_config(name, language)
        branch = branch_of_config(IMAGES, network_of_fields(self.encoder), language)
        if self.features is not None:
            features = encoder_of_config(IMAGES, network_of_fields(self.features))
            branch = replace(branch, features=features)
        return MultimodalModel(name, language_of_config(f"{name} language", language), (branch,))


def projector_fields(inner: int, language: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a projector with an inner width, which may be the usual one."""
    return {} if inner == language["ffn_hidden_size"] else {"hidden_sizes": [inner]}
