"""The networks of a model as sections of an experiment.

Fields at the value that an unset field means are left out, so that files stay short.
"""

from __future__ import annotations

from typing import Any

from mimokit.architecture.config_fields import (
    EXPERTS,
    LANGUAGE,
    LATENT_ATTENTION,
    LAYERS,
    NORMALIZATIONS,
    PROJECTOR,
    VISION,
    write,
)
from mimokit.architecture.modules import (
    AudioEncoder,
    Encoder,
    EncoderBranch,
    LanguageModel,
    Projector,
    TextEncoder,
    VisionEncoder,
)
from mimokit.architecture.transformer import Transformer


def language_network(
    model: LanguageModel, seq_length: int, tensor_parallel: int = 1
) -> dict[str, Any]:
    """Return the fields of a language model's `ModuleArchitecture`.

    Args:
        seq_length: tokens of a sample.
        tensor_parallel: if it does not divide the vocabulary, the field for padding is written.
    """
    learned = {
        "position_embedding_type": "learned_absolute",
        "max_position_embeddings": model.positions,
    }
    padded = {"make_vocab_size_divisible_by": model.vocab_multiple}
    return {
        **_layers(model.net),
        "seq_length": seq_length,
        **write(LANGUAGE, model),
        **(learned if model.positions else {}),
        **(padded if model.vocab % tensor_parallel else {}),
    }


def encoder_network(branch: EncoderBranch, language: LanguageModel) -> dict[str, Any]:
    """Return the fields of an encoder's `ModuleArchitecture`, its projector included."""
    network = lone_encoder_network(branch.encoder)
    merged = branch.projector.widths[0] // branch.encoder.net.hidden
    if isinstance(branch.encoder, AudioEncoder) and merged > 1:
        network["merge_size"] = merged
    projector = _projector(branch.projector, branch.encoder.net.hidden, language)
    return {**network, "projector": projector} if projector else network


def lone_encoder_network(encoder: Encoder) -> dict[str, Any]:
    """Return the fields of an encoder's `ModuleArchitecture`, its projector aside."""
    network = {**_layers(encoder.net), "vocab_size": 0}
    if isinstance(encoder, AudioEncoder):
        return {**network, "seq_length": encoder.positions, "mel_bins": encoder.mel_bins}
    if isinstance(encoder, TextEncoder):
        of_text = {
            "seq_length": encoder.positions,
            "vocab_size": encoder.vocab,
            "modal_type": "text",
        }
        return {**network, **of_text}
    return {**network, **_vision(encoder)}


def _vision(encoder: VisionEncoder) -> dict[str, Any]:
    cell = encoder.patch_size * encoder.merge
    side = encoder.image_size // cell * cell
    table = (side // encoder.patch_size) ** 2 + encoder.class_token
    kind = "rope" if encoder.positions == 0 else "learned_absolute"
    usual = encoder.positions == table
    return {
        "seq_length": encoder.patches(),
        "image_size": side,
        "patch_size": encoder.patch_size,
        "num_channels": encoder.channels,
        "merge_size": encoder.merge,
        **write(VISION, encoder),
        **_given(
            position_embedding_type=None if usual else kind,
            max_position_embeddings=None if usual else encoder.positions or None,
            pooling_head=True if encoder.head == "attention" else None,
        ),
    }


def _layers(net: Transformer) -> dict[str, Any]:
    fields = write(LAYERS, net, {"mla": net.mla})
    if net.moe is not None:
        fields |= write(EXPERTS, net.moe, {"dense_ffn": net.ffn})
    if net.mla is not None:
        fields |= {"multi_latent_attention": True, **write(LATENT_ATTENTION, net.mla)}
    return fields


def _projector(projector: Projector, hidden: int, language: LanguageModel) -> dict[str, Any]:
    inward, *inside = projector.widths[:-1]
    norm, copied = projector.norm, projector.copy_norm
    return write(PROJECTOR, projector) | _given(
        hidden_sizes=None if inside == [language.net.ffn] else inside,
        normalization=None if norm is None else NORMALIZATIONS[norm[0]],
        norm_size=None if norm is None or norm[1] == hidden else norm[1],
        deepstack_normalization=None if copied is None else NORMALIZATIONS[copied[0]],
        deepstack_norm_size=None if copied is None or copied[1] == inward else copied[1],
    )


def _given(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}
