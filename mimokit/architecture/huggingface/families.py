"""Which tensors Hugging Face weights contain, by the `model_type` of its config."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mimokit.architecture.encoders import VisionEncoder
from mimokit.architecture.huggingface.models import (
    ENCODER,
    LANGUAGE,
    PROJECTOR,
    SUBMODULE,
    from_hf,
)
from mimokit.architecture.huggingface.qwen_vision_tensors import (
    PATCHES,
    QWEN_VISION_TYPES,
    add_qwen_tower,
)
from mimokit.architecture.huggingface.unreadable import check_readable
from mimokit.architecture.huggingface.weight_tensors import (
    FURTHER_TOKENS,
    GROUPED_TYPES,
    OF_WHOLE_MODELS,
    WeightTensors,
    add_gpt2,
    add_grouped,
    add_projector,
    add_tower,
)
from mimokit.architecture.modules import EncoderBranch, LanguageModel, Model, MultimodalModel
from mimokit.architecture.tensor_rows import End, ModuleTensor
from mimokit.architecture.tensors import by_name, encoder_tensors, module_tensors
from mimokit.architecture.transformer import Transformer
from mimokit.config.errors import ConfigError, Problem
from mimokit.units import shown

TOWER_TYPES = ("clip", "clip_vision_model", "siglip", "siglip_vision_model")
FAMILIES = (*GROUPED_TYPES, "gpt2", *TOWER_TYPES, "llava", *QWEN_VISION_TYPES)
"""The values of `model_type` whose weights can be read."""

PROJECTOR_WEIGHT = "linear_1.weight"
"""Ends the name of a tensor of LLaVA's projector."""


@dataclass(frozen=True)
class Family:
    """The network of Hugging Face weights and its tensors.

    Attributes:
        left_out: layers that predict further tokens, which the weights have and `model` does not.
    """

    model_type: str
    model: Model
    found: WeightTensors
    vocab_multiple: int = 1
    left_out: int = 0

    @property
    def stacked(self) -> Transformer:
        """The layers that a pipeline cuts: of the language model, else of the tower."""
        part = self.model.language if isinstance(self.model, MultimodalModel) else self.model
        return part.net

    @property
    def nets(self) -> Mapping[str, Transformer]:
        """All stacks of layers that tensor parallelism cuts, by what they are called."""
        if isinstance(self.model, MultimodalModel):
            towers = {branch.name: branch.encoder.net for branch in self.model.branches}
            return {"the language model": self.stacked, **towers}
        return {"the model": self.stacked}

    @property
    def language(self) -> LanguageModel | None:
        """The language model, padded as it is read; None for a tower."""
        part = self.model.language if isinstance(self.model, MultimodalModel) else self.model
        if not isinstance(part, LanguageModel):
            return None
        return replace(part, vocab_multiple=self.vocab_multiple)

    @property
    def further_layers(self) -> int:
        """Layers that predict further tokens, on the last stage."""
        return 0 if self.language is None else self.language.next_token_layers

    @property
    def vocab(self) -> int | None:
        """Rows of the token embedding without padding; None for a tower."""
        return None if self.language is None else self.language.vocab


def family_of(config: Mapping[str, Any], names: Collection[str], *, further: bool = True) -> Family:
    """Return the tensors that weights must contain.

    Args:
        names: of the tensors in its files; parts are found by known endings, since files of
            different age put different prefixes in front.
        further: with the layers of a language model that predict further tokens.

    Raises:
        ConfigError: the config is wrong, its family cannot be read, or the embedding of a part is
            in no file, or in several places.
    """
    kind = config.get("model_type")
    check_readable("Weights", kind, FAMILIES)
    model = from_hf(config, "model")  # rejects a missing one
    if isinstance(model, MultimodalModel):
        weights = _multimodal_tensors(model, config, names)
    elif isinstance(model, VisionEncoder):
        weights = WeightTensors(by_name(encoder_tensors(model, "")))
        weights.passed_over += OF_WHOLE_MODELS
        add_tower(weights, model, prefix_of(names, "embeddings.patch_embedding.weight"))
    else:
        assert isinstance(model, LanguageModel)
        return language_family(config, model, names, further=further)
    return Family(str(kind), model, weights)


def language_family(
    config: Mapping[str, Any],
    stored: LanguageModel,
    names: Collection[str],
    *,
    vocab_multiple: int = 1,
    further: bool = True,
) -> Family:
    """Return the tensors of a language model, which may be in a LLaVA."""
    kind, model = language_type(config), stored
    if not further:
        model = replace(stored, next_token_layers=0)
    padded = replace(model, vocab_multiple=vocab_multiple)
    weights, head = WeightTensors(by_name(module_tensors(padded))), head_name(names)
    if kind == "gpt2":
        add_gpt2(weights, model, prefix_of(names, "wte.weight"), head)
    else:
        prefix = prefix_of(names, "embed_tokens.weight")
        add_grouped(weights, kind, model, prefix, head)
        if model != stored:
            weights.passed_over.append(f"{prefix}{FURTHER_TOKENS}")
    left_out = stored.next_token_layers - model.next_token_layers
    return Family(str(config.get("model_type")), model, weights, vocab_multiple, left_out)


def _multimodal_tensors(
    model: MultimodalModel, config: Mapping[str, Any], names: Collection[str]
) -> WeightTensors:
    """Return language model, tower and projector; the latter two lie on the first stage."""
    kind = language_type(config)
    (branch,) = model.branches
    assert isinstance(branch.encoder, VisionEncoder)
    weights = WeightTensors(by_name(_multimodal_table(branch, model.language)))
    if config["model_type"] in QWEN_VISION_TYPES:
        add_qwen_tower(weights, kind, branch, prefix_of(names, PATCHES), ENCODER, PROJECTOR)
    else:
        tower = prefix_of(names, "embeddings.patch_embedding.weight")
        add_tower(weights, branch.encoder, tower, ENCODER)
        add_projector(weights, branch.projector, prefix_of(names, PROJECTOR_WEIGHT), PROJECTOR)
    prefix = prefix_of(names, "embed_tokens.weight")
    add_grouped(weights, kind, model.language, prefix, head_name(names), LANGUAGE)
    return weights


def _multimodal_table(branch: EncoderBranch, language: LanguageModel) -> Iterator[ModuleTensor]:
    for row in module_tensors(branch):
        yield replace(row, name=f"{SUBMODULE}{row.name}", place=End.FIRST)
    for row in module_tensors(replace(language, vocab_multiple=1)):
        yield replace(row, name=f"{LANGUAGE}{row.name}")


def language_type(config: Mapping[str, Any]) -> str:
    """Return the `model_type` of the language model, which may be in a LLaVA."""
    text = config.get("text_config")
    if config.get("model_type") != "llava" or not isinstance(text, Mapping):
        return str(config.get("model_type"))
    kind = text.get("model_type", "llama")
    check_readable("Weights", kind, GROUPED_TYPES)
    return str(kind)


def prefix_of(names: Collection[str], ending: str) -> str:
    """Return what is in front of the one name with this ending."""
    prefixes = sorted(
        name.removesuffix(ending) for name in names if f".{name}".endswith(f".{ending}")
    )
    if len(prefixes) == 1:
        return prefixes[0]
    many = f"{len(prefixes)} of them, such as {shown(f'{prefixes[0]}{ending}')}" if prefixes else ""
    sentence = (
        f"Weights: there must be one tensor whose name ends in {ending}, "
        f"and there {f'are {many}' if many else 'is none'}; "
        "give the weights that belong to the config.json."
    )
    raise ConfigError([Problem("weights", ending, len(prefixes), sentence)])


def head_name(names: Collection[str]) -> str:
    """Return the name of the output layer, or what it would be."""
    return next(
        (name for name in names if f".{name}".endswith(".lm_head.weight")), "lm_head.weight"
    )
