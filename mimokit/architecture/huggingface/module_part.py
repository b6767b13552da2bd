"""The part of a model from whose weights a module of a run starts."""

from mimokit.architecture.encoders import VisionEncoder
from mimokit.architecture.modules import EncoderBranch, LanguageModel, Model, MultimodalModel
from mimokit.config.errors import ConfigError, Problem

Part = LanguageModel | VisionEncoder | EncoderBranch


def part_of(model: Model, language: bool) -> Part:
    """Return what of a model a module is: its language model, or else its first encoder."""
    if isinstance(model, MultimodalModel):
        if language:
            return model.language
        return model.branches[0].computed
    wanted = LanguageModel if language else VisionEncoder
    if not isinstance(model, wanted):
        kinds = "a language model" if language else "a vision tower"
        sentence = f"Weights: config.json does not describe {kinds}; give the weights of one."
        raise ConfigError([Problem("weights", "model_type", None, sentence)])
    return model
