"""The encoder of a module, whatever it reads."""

from __future__ import annotations

from mimokit.config import ModuleArchitecture, ModuleParallelismConfig
from mimokit.engine.megatron import ModuleSpec
from mimokit.engine.models.audio import AUDIO_ENCODER_NAME, audio_submodule_spec
from mimokit.engine.models.transformer import WHOLE, StagePart
from mimokit.engine.models.vision import ENCODER_NAME, vision_submodule_spec


def encoder_name(architecture: ModuleArchitecture) -> str:
    """Return the name under which a batch holds the inputs of an encoder."""
    return AUDIO_ENCODER_NAME if architecture.modality == "audio" else ENCODER_NAME


def encoder_submodule_spec(
    architecture: ModuleArchitecture,
    language: ModuleArchitecture,
    parallelism: ModuleParallelismConfig,
    initial_seed: int = 0,
    part: StagePart = WHOLE,
) -> ModuleSpec:
    """Return the spec of a vision or audio encoder and its projector.

    Args:
        architecture: of the encoder; `modality` says which kind it is.
        language: of the language model, in whose width the projector ends.
        parallelism: of the encoder.
        initial_seed: see `SeededTransformerLayer`.
        part: what of it a pipeline stage holds; the projector is on the last.

    Raises:
        ValueError: if its sizes do not divide each other.
    """
    build = audio_submodule_spec if architecture.modality == "audio" else vision_submodule_spec
    return build(architecture, language, parallelism, initial_seed, part)
