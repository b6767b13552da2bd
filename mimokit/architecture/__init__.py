"""Networks as numbers: their parameters, sizes and tokens."""

from mimokit.architecture.from_config import model_of_config
from mimokit.architecture.huggingface import from_hf
from mimokit.architecture.modules import (
    AudioEncoder,
    EncoderBranch,
    LanguageModel,
    Model,
    MultimodalModel,
    Projector,
    RowEncoder,
    TextEncoder,
    VisionEncoder,
)
from mimokit.architecture.presets import load_model, model_facts, model_names
from mimokit.architecture.transformer import LatentAttention, MixtureOfExperts, Transformer

__all__ = [
    "AudioEncoder",
    "EncoderBranch",
    "LanguageModel",
    "LatentAttention",
    "MixtureOfExperts",
    "Model",
    "MultimodalModel",
    "Projector",
    "RowEncoder",
    "TextEncoder",
    "Transformer",
    "VisionEncoder",
    "from_hf",
    "load_model",
    "model_facts",
    "model_names",
    "model_of_config",
]
