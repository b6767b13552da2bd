"""The model that a config describes."""

from dataclasses import fields, replace
from typing import Any, TypeVar

from mimokit.architecture.attention import attention_of_config
from mimokit.architecture.encoders import (
    AudioEncoder,
    Encoder,
    RowEncoder,
    TextEncoder,
    VisionEncoder,
)
from mimokit.architecture.feed_forward import MixtureOfExperts
from mimokit.architecture.modules import (
    DecoderHead,
    EncoderBranch,
    LanguageModel,
    Model,
    Module,
    MultimodalModel,
    Projector,
)
from mimokit.architecture.tensor_cut import TensorCut
from mimokit.architecture.tensors import cuts_of
from mimokit.architecture.tokens import (
    audio_geometry,
    image_geometry,
    row_features,
    rows_of_table,
)
from mimokit.architecture.transformer import Transformer
from mimokit.config import ModelSection, ModuleArchitecture, ProjectorArchitecture
from mimokit.config.errors import ConfigError, Problem
from mimokit.config.graph import topological_order

MOST_PARAMETERS = 2**53
"""Parameters of the largest model that is accepted; larger numbers are not exact as floats."""


def check_parameters(model: Model, where: str, module: str) -> None:
    """Reject a model of more than `MOST_PARAMETERS` together."""
    if model.parameters > MOST_PARAMETERS:
        sentence = (
            f"{where}: the sizes give {model.parameters:.1e} parameters, more than the "
            f"{MOST_PARAMETERS:.1e} that can be planned; correct them."
        )
        raise ConfigError([Problem(module, "parameters", model.parameters, sentence)])


_Described = TypeVar("_Described")


def _described(kind: type[_Described], size: ModuleArchitecture, **known: Any) -> _Described:
    """Return a description with what a config states and means, under the same names."""
    names = [field.name for field in fields(kind) if field.name not in known]  # type: ignore[arg-type]
    return kind(**{name: getattr(size, name) for name in names}, **known)


def model_of_config(model: ModelSection, name: str = "model") -> MultimodalModel:
    """Return the description of the networks in a config.

    Fields that a config leaves unset are as mimokit's engine builds them, with Megatron's defaults:
    LayerNorm, GELU, biases, as many key heads as query heads, rotary positions in the language
    model and learned ones in encoders; tied embeddings if the config sets them.

    Raises:
        ConfigError: a module has no architecture, or all are too large together.
    """
    language = model.get_architecture(model.llm_module_name)
    branches = tuple(
        branch_of_config(
            encoder,
            model.get_architecture(encoder),
            *map(model.get_architecture, model.receivers_of(encoder)),
        )
        for encoder in model.encoder_module_names
    )
    whole = MultimodalModel(
        name,
        language_of_config(model.llm_module_name, language),
        branches,
        tuple(
            decoder_head(decoder, model.get_architecture(decoder), language)
            for decoder in model.decoder_module_names
        ),
        feeds_of_config(model),
    )
    check_parameters(whole, "Section 'model'", "model")
    return whole


def feeds_of_config(model: ModelSection) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return `MultimodalModel.feeds` of a config, feeders first."""
    language, topology = model.llm_module_name, model.module_topology
    usual = {name: () if name == language else (language,) for name in topology}
    usual |= dict.fromkeys(model.decoder_module_names, ())
    return tuple(
        (name, topology[name])
        for name in topological_order(topology)
        if topology[name] != usual[name]
    )


def modules_of_config(model: ModelSection) -> tuple[Module, ...]:
    """Return the encoders, the language model and the decoders of a config as the engine has them.

    It pads a vocabulary only where the config says so.
    """
    described = model_of_config(model)
    multiple = model.get_architecture(model.llm_module_name).vocabulary_multiple
    language = replace(described.language, vocab_multiple=multiple or 1)
    return (*described.branches, language, *described.decoders)


def cuts_of_config(model: ModelSection) -> dict[str, dict[str, TensorCut]]:
    """Return module -> tensor of the whole module -> how it is cut."""
    return {module.name: cuts_of(module) for module in modules_of_config(model)}


def decoder_head(
    name: str, size: ModuleArchitecture, language: ModuleArchitecture
) -> DecoderHead | EncoderBranch:
    """Return a decoder behind the language model of a config, of text or of items."""
    if size.modality != "text":
        rows = encoder_of_config(name, size.over_rows)
        assert isinstance(rows, RowEncoder)
        projector = Projector((size.hidden_size, row_features(size)))
        return EncoderBranch(name, replace(rows, inputs=language.hidden_size), projector)
    net = net_of_config(size, causal=True)
    return DecoderHead(
        name, net, size.vocab_size, language.hidden_size, _positions(size), network=size
    )


def language_of_config(name: str, size: ModuleArchitecture) -> LanguageModel:
    """Return the description of a language model; see `model_of_config`."""
    net = net_of_config(size, causal=True)
    known = {"name": name, "net": net, "positions": _positions(size), "network": size}
    described = _described(LanguageModel, size, **known)
    if size.weights is None:
        return described
    return replace(described, vocab_multiple=size.vocabulary_multiple or 1)


def _positions(size: ModuleArchitecture) -> int:
    learned = size.has_learned_positions(by_default=False)
    return (size.max_position_embeddings or size.seq_length) if learned else 0


def net_of_config(size: ModuleArchitecture, causal: bool) -> Transformer:
    """Return the description of the layers of a module; see `model_of_config`."""
    moe = None
    if size.num_moe_experts is not None:
        own = {"ffn": size.expert_ffn, "dense_layers": size.leading_dense}
        moe = _described(MixtureOfExperts, size, **own)
    known = {"attention": attention_of_config(size), "kv_heads": size.key_heads}
    return _described(Transformer, size, causal=causal, moe=moe, **known)


def branch_of_config(
    name: str, size: ModuleArchitecture, *receivers: ModuleArchitecture
) -> EncoderBranch:
    """Return the description of an encoder and its projectors; see `model_of_config`."""
    encoder = encoder_of_config(name, size)
    merged = size.merge_size**2 if size.modality == "vision" else size.merge_size
    first, *others = (_projector(size, size.hidden_size * merged, each) for each in receivers)
    plain = (replace(other, inner_layers=(), copy_norm=None) for other in others)
    return EncoderBranch(name, encoder, first, others=tuple(plain))


def encoder_of_config(name: str, size: ModuleArchitecture) -> Encoder:
    """Return the description of an encoder without its projectors; see `model_of_config`."""
    if size.modality == "vision":
        return _vision_encoder(name, size)
    net = net_of_config(size, causal=size.modality == "text")
    learned = size.has_learned_positions(by_default=True)
    table = size.max_position_embeddings if learned else 0
    if size.modality == "audio":
        geometry = audio_geometry(size)
        return AudioEncoder(name, net, geometry.mel_bins, geometry.positions, table, network=size)
    if size.modality == "text":
        return TextEncoder(name, net, size.vocab_size, size.seq_length, table, network=size)
    return RowEncoder(name, net, size.seq_length, table, network=size)


def _projector(size: ModuleArchitecture, inward: int, receiver: ModuleArchitecture) -> Projector:
    said = size.projector or ProjectorArchitecture()
    norm, copied = said.normalization, said.deepstack_normalization
    return Projector(
        (inward, *size.projector_widths(receiver)),
        bias=said.add_bias_linear is not False,
        norm=None if norm is None else (norm, said.norm_size or size.hidden_size),
        copy_norm=None if copied is None else (copied, said.deepstack_norm_size or inward),
        inner_layers=size.inner_layers,
    )


def _vision_encoder(name: str, size: ModuleArchitecture) -> VisionEncoder:
    known = {"name": name, "net": net_of_config(size, causal=False), "network": size}
    known |= {"images": image_geometry(size), "table": rows_of_table(size)}
    return _described(VisionEncoder, size, **known)
