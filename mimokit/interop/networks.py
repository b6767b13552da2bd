"""The networks of a model as an experiment describes them.

What is as an experiment has it where it says nothing is left out, so that files stay short.
"""

from __future__ import annotations

from typing import Any

from mimokit.architecture import (
    AudioEncoder,
    EncoderBranch,
    LanguageModel,
    LatentAttention,
    MixtureOfExperts,
    TextEncoder,
    Transformer,
    VisionEncoder,
)
from mimokit.architecture.from_config import MEGATRON_TOP_K
from mimokit.architecture.modules import VOCABULARY_MULTIPLE, Encoder, Projector
from mimokit.architecture.transformer import Norm

_NORMALIZATION: dict[Norm, str] = {"rms": "RMSNorm", "layer": "LayerNorm"}


def language_network(
    model: LanguageModel, seq_length: int, tensor_parallel: int = 1
) -> dict[str, Any]:
    """Return the fields of a language model's `ModuleArchitecture`.

    Args:
        model: the language model.
        seq_length: tokens of a sample.
        tensor_parallel: a vocabulary that it does not divide is said to be padded.
    """
    padded = model.vocab % tensor_parallel or model.vocab_multiple != VOCABULARY_MULTIPLE
    learned = model.positions > 0
    return {
        **_layers(model.net),
        "seq_length": seq_length,
        "vocab_size": model.vocab,
        "tied_embeddings": model.tied,
        **_given(
            mtp_num_layers=model.next_token_layers or None,
            position_embedding_type="learned_absolute" if learned else None,
            max_position_embeddings=model.positions or None,
            make_vocab_size_divisible_by=model.vocab_multiple if padded else None,
        ),
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
    """Return the fields of an encoder's `ModuleArchitecture` that are its own."""
    network = {**_layers(encoder.net), "vocab_size": 0}
    if isinstance(encoder, AudioEncoder):
        return {**network, "seq_length": encoder.positions, "mel_bins": encoder.mel_bins}
    if isinstance(encoder, TextEncoder):
        own = {"seq_length": encoder.positions, "vocab_size": encoder.vocab, "modal_type": "text"}
        return {**network, **own}
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
        "class_token": encoder.class_token,
        **({"num_registers": encoder.registers} if encoder.registers else {}),
        **_given(
            temporal_patch_size=None if encoder.frames_per_patch == 1 else encoder.frames_per_patch,
            position_embedding_type=None if usual else kind,
            max_position_embeddings=None if usual else encoder.positions or None,
            patch_bias=None if encoder.patch_bias else False,
            outer_norms=None if encoder.norms == 1 else encoder.norms,
            pooling_head=True if encoder.head == "attention" else None,
        ),
    }


def _layers(net: Transformer) -> dict[str, Any]:
    width = net.hidden // net.heads if net.mla is None else net.qk_dim
    return {
        "num_layers": net.layers,
        "hidden_size": net.hidden,
        "num_attention_heads": net.heads,
        "ffn_hidden_size": net.ffn,
        **_given(
            num_query_groups=None if net.kv_heads == net.heads else net.kv_heads,
            kv_channels=None if net.head_dim == width else net.head_dim,
            gated_linear_unit=True if net.gated else None,
            normalization=None if net.norm == "layer" else _NORMALIZATION[net.norm],
            add_bias_linear=None if net.ffn_bias else False,
            add_qkv_bias=None if net.qkv_bias == net.ffn_bias else net.qkv_bias,
            add_key_bias=None if net.key_bias else False,
            add_attention_output_bias=(
                None if net.output_bias == net.ffn_bias else net.output_bias
            ),
            qk_layernorm=True if net.qk_norm else None,
            window_size=net.window or None,
            full_attention_layers=net.full_attention_layers or None,
        ),
        **({} if net.moe is None else _experts(net.moe, net.ffn)),
        **({} if net.mla is None else _latent_attention(net.mla)),
    }


def _experts(moe: MixtureOfExperts, ffn: int) -> dict[str, Any]:
    return {
        "num_moe_experts": moe.experts,
        **_given(
            moe_router_topk=None if moe.top_k == MEGATRON_TOP_K else moe.top_k,
            moe_ffn_hidden_size=None if moe.ffn == ffn else moe.ffn,
            moe_shared_expert_intermediate_size=moe.shared_ffn or None,
            first_k_dense_replace=moe.dense_layers or None,
            moe_router_enable_expert_bias=True if moe.router_bias else None,
            moe_shared_expert_gate=True if moe.shared_gate else None,
        ),
    }


def _latent_attention(mla: LatentAttention) -> dict[str, Any]:
    return {
        "multi_latent_attention": True,
        **_given(q_lora_rank=mla.q_rank or None),
        "kv_lora_rank": mla.kv_rank,
        "qk_head_dim": mla.nope_dim,
        "qk_pos_emb_head_dim": mla.rope_dim,
        "v_head_dim": mla.v_dim,
    }


def _projector(projector: Projector, hidden: int, language: LanguageModel) -> dict[str, Any]:
    inward, *inside = projector.widths[:-1]
    norm, copied = projector.norm, projector.copy_norm
    return _given(
        hidden_sizes=None if inside == [language.net.ffn] else inside,
        add_bias_linear=None if projector.bias else False,
        normalization=None if norm is None else _NORMALIZATION[norm[0]],
        norm_size=None if norm is None or norm[1] == hidden else norm[1],
        deepstack_copies=projector.copies or None,
        deepstack_normalization=None if copied is None else _NORMALIZATION[copied[0]],
        deepstack_norm_size=None if copied is None or copied[1] == inward else copied[1],
    )


def _given(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}
