"""The sections of a config that describe a model.

Fields at the value that an unset field means are left out, so that files stay short.
"""

from collections.abc import Mapping
from typing import Any

from mimokit.architecture.encoders import AudioEncoder, Encoder, TextEncoder, VisionEncoder
from mimokit.architecture.modules import DecoderHead, EncoderBranch, LanguageModel, Projector
from mimokit.architecture.transformer import Transformer
from mimokit.config import ModuleArchitecture
from mimokit.config.meaning import MEANINGS


def language_network(
    model: LanguageModel, seq_length: int, tensor_parallel: int = 1
) -> dict[str, Any]:
    """Return the fields of a language model's `ModuleArchitecture`.

    Where `tensor_parallel` does not divide the vocabulary, the field for padding is among them.
    """
    learned = {
        "position_embedding_type": "learned_absolute",
        "max_position_embeddings": model.positions,
    }
    padded = {"make_vocab_size_divisible_by": model.vocab_multiple}
    scaling = model.rope_scaling
    return {
        **_shortened(_layers(model.net) | _stated(model)),
        "seq_length": seq_length,
        **_given(rope_scaling=None if scaling is None else scaling.model_dump(mode="json")),
        **(learned if model.positions else {}),
        **(padded if model.vocab % tensor_parallel else {}),
    }


def decoder_network(decoder: DecoderHead, seq_length: int) -> dict[str, Any]:
    """Return the fields of the `ModuleArchitecture` of a text decoder."""
    of_text = {"seq_length": seq_length, "vocab_size": decoder.vocab, "modal_type": "text"}
    table = _stated_table(decoder.positions) if decoder.positions else {}
    return {**_shortened(_layers(decoder.net)), **of_text, **table}


def encoder_network(branch: EncoderBranch, receiver: Transformer) -> dict[str, Any]:
    """Return the fields of an encoder's `ModuleArchitecture`, its projector included."""
    network = lone_encoder_network(branch.encoder)
    if isinstance(branch.encoder, AudioEncoder) and branch.positions_of_a_row > 1:
        network["merge_size"] = branch.positions_of_a_row
    projector = _projector_section(branch.projector, branch.encoder.net.hidden, receiver)
    return {**network, "projector": projector} if projector else network


def lone_encoder_network(encoder: Encoder) -> dict[str, Any]:
    """Return the fields of an encoder's `ModuleArchitecture`, its projector aside."""
    network = {**_shortened(_layers(encoder.net)), "vocab_size": 0}
    if isinstance(encoder, VisionEncoder):
        return network | _vision(encoder)
    network |= {"seq_length": encoder.positions, **_stated_table(encoder.table)}
    if isinstance(encoder, AudioEncoder):
        return network | {"mel_bins": encoder.mel_bins}
    if isinstance(encoder, TextEncoder):
        return network | {"vocab_size": encoder.vocab, "modal_type": "text"}
    return network | {"modal_type": "rows"}


def _stated_table(table: int | None) -> dict[str, Any]:
    if table is None:
        return {}
    if table == 0:
        return {"position_embedding_type": "rope"}
    return {"position_embedding_type": "learned_absolute", "max_position_embeddings": table}


def _vision(encoder: VisionEncoder) -> dict[str, Any]:
    cell = encoder.patch_size * encoder.merge
    side = encoder.image_size // cell * cell
    table = (side // encoder.patch_size) ** 2 + encoder.class_token
    kind = "rope" if encoder.positions == 0 else "learned_absolute"
    kind = "interpolated" if encoder.interpolated else kind
    usual = encoder.positions == table and not encoder.interpolated
    return {
        "seq_length": encoder.patches(),
        "image_size": side,
        "patch_size": encoder.patch_size,
        "num_channels": encoder.channels,
        "merge_size": encoder.merge,
        "class_token": encoder.class_token,
        **_shortened(_stated(encoder)),
        **_given(
            position_embedding_type=None if usual else kind,
            max_position_embeddings=None if usual else encoder.positions or None,
        ),
    }


def _layers(net: Transformer) -> dict[str, Any]:
    section = _stated(net)
    if net.moe is not None:
        own = {"ffn": net.ffn, "expert_ffn": net.moe.ffn, "leading_dense": net.moe.dense_layers}
        section |= _stated(net.moe, **own)
    if net.mla is not None:
        section |= {"multi_latent_attention": True, **_stated(net.mla)}
    return section


def _stated(description: object, **known: Any) -> dict[str, Any]:
    """Return the fields of a config that state a description."""
    own = {**vars(description), **known}
    return {each.field: own[each.name] for each in MEANINGS if each.name in own}


def _shortened(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section without fields that mean the same where they are left out."""
    short: dict[str, Any] = {}
    for each in MEANINGS:
        if (value := section.get(each.field)) is None:
            continue
        without = ModuleArchitecture.model_construct(**{**section, each.field: None})
        if each.always or value != each.of(without):
            short[each.field] = list(value) if isinstance(value, tuple) else value
    return short


def _projector_section(projector: Projector, hidden: int, receiver: Transformer) -> dict[str, Any]:
    inward, *inside = projector.widths[:-1]
    norm, copied = projector.norm, projector.copy_norm
    return _given(
        add_bias_linear=None if projector.bias else False,
        hidden_sizes=None if inside == [receiver.ffn] else inside,
        normalization=None if norm is None else norm[0],
        norm_size=None if norm is None or norm[1] == hidden else norm[1],
        deepstack_layers=list(projector.inner_layers) or None,
        deepstack_normalization=None if copied is None else copied[0],
        deepstack_norm_size=None if copied is None or copied[1] == inward else copied[1],
    )


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
