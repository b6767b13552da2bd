"""The encoder of a module, whatever it reads."""

from __future__ import annotations

from mimokit.config import ModuleArchitecture, ModuleParallelismConfig
from mimokit.engine.megatron import ModuleSpec
from mimokit.engine.models.any_size import ANY_SIZE_VISION
from mimokit.engine.models.audio import AUDIO
from mimokit.engine.models.encoder import EncoderKind
from mimokit.engine.models.text import TEXT
from mimokit.engine.models.transformer import WHOLE, StagePart
from mimokit.engine.models.vision import VISION


def encoder_kind(architecture: ModuleArchitecture) -> EncoderKind:
    """Return which kind of encoder an architecture describes."""
    if architecture.modality in ("audio", "text"):
        return AUDIO if architecture.modality == "audio" else TEXT
    return ANY_SIZE_VISION if architecture.any_image_size else VISION


def encoder_submodule_spec(
    architecture: ModuleArchitecture,
    language: ModuleArchitecture,
    parallelism: ModuleParallelismConfig,
    initial_seed: int = 0,
    part: StagePart = WHOLE,
) -> ModuleSpec:
    """Return the spec of an encoder and its projector; the provider injects the process groups.

    Args:
        architecture: of the encoder.
        language: of the language model, in whose width the projector ends.
        parallelism: of the encoder.
        initial_seed: see `SeededTransformerLayer`.
        part: what of it a pipeline stage holds; the projector is on the last.

    Raises:
        ValueError: if its sizes do not divide each other.
    """
    kind = encoder_kind(architecture)
    return kind.spec(architecture, language, parallelism, initial_seed, part)
