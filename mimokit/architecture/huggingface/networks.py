"""The networks that a Hugging Face config describes, as fields of a config."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mimokit.config.architecture import network_of_fields
from mimokit.config.errors import ConfigError, Problem


@dataclass(frozen=True)
class Networks:
    """Fields of the networks of a model; None where it has none.

    Attributes:
        features: of the part of the encoder whose output the projector takes; None: all of it.
    """

    language: Mapping[str, Any] | None = None
    encoder: Mapping[str, Any] | None = None
    features: Mapping[str, Any] | None = None

    def part(self, language: bool) -> Mapping[str, Any]:
        """Return the fields of a module: of the language model, or else of the encoder."""
        both = self.language is not None and self.encoder is not None
        part = self.language if language else self.features or self.encoder
        if part is None or not (language or both or network_of_fields(part).modality == "vision"):
            raise lacks_part(language)
        return part


def lacks_part(language: bool) -> ConfigError:
    """Return the rejection of a config without a language model, or without a vision tower."""
    kinds = "a language model" if language else "a vision tower"
    sentence = f"Weights: config.json does not describe {kinds}; give the weights of one."
    return ConfigError([Problem("weights", "model_type", None, sentence)])


def projector_fields(inner: int, language: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a projector with an inner width, which may be the usual one."""
    return {} if inner == language["ffn_hidden_size"] else {"hidden_sizes": [inner]}
