"""The model that a config describes."""

from __future__ import annotations

import math

from mimokit.architecture.modules import (
    VOCABULARY_MULTIPLE,
    AudioEncoder,
    Encoder,
    EncoderBranch,
    LanguageModel,
    MultimodalModel,
    Projector,
    TextEncoder,
    VisionEncoder,
)
from mimokit.architecture.tokens import audio_geometry, image_geometry
from mimokit.architecture.transformer import (
    LatentAttention,
    MixtureOfExperts,
    Norm,
    Transformer,
)
from mimokit.config import MimoParallelismConfig, ModuleArchitecture, ProjectorArchitecture

MEGATRON_TOP_K = 2
"""Experts that a token visits where nothing is said (`TransformerConfig.moe_router_topk`)."""


def model_of_config(model: MimoParallelismConfig, name: str = "model") -> MultimodalModel:
    """Return the description of the networks in a config.

    What a config leaves out is as mimokit's own engine builds it, with Megatron's defaults:
    LayerNorm, GELU, biases, as many key heads as query heads, rotary positions in the language
    model and learned ones in encoders; tied embeddings where the config says so.

    Raises:
        ConfigError: a module has no architecture.
    """
    language = model.get_architecture(model.llm_module_name)
    branches = tuple(
        _branch(encoder, model.get_architecture(encoder), language)
        for encoder in model.encoder_module_names
    )
    learned = language.has_learned_positions(by_default=False)
    described = LanguageModel(
        model.llm_module_name,
        _net(language, True),
        language.vocab_size,
        tied=language.tied_embeddings,
        positions=(language.max_position_embeddings or language.seq_length) if learned else 0,
        next_token_layers=language.mtp_num_layers or 0,
        vocab_multiple=language.make_vocab_size_divisible_by or VOCABULARY_MULTIPLE,
    )
    return MultimodalModel(name, described, branches)


def _net(size: ModuleArchitecture, causal: bool) -> Transformer:
    biased = size.add_bias_linear is not False
    return Transformer(
        layers=size.num_layers,
        hidden=size.hidden_size,
        heads=size.num_attention_heads,
        kv_heads=size.num_query_groups or size.num_attention_heads,
        head_dim=size.head_dim,
        ffn=size.feed_forward_size,
        gated=bool(size.gated_linear_unit),
        norm=_norm(size.normalization),
        qkv_bias=_or_else(size.add_qkv_bias, biased),
        key_bias=size.add_key_bias is not False,
        output_bias=_or_else(size.add_attention_output_bias, biased),
        ffn_bias=biased,
        qk_norm=bool(size.qk_layernorm),
        causal=causal,
        window=size.window_size or 0,
        full_attention_layers=size.full_attention_layers or 0,
        moe=_experts(size),
        mla=_latent_attention(size),
    )


def _or_else(value: bool | None, otherwise: bool) -> bool:
    return otherwise if value is None else value


def _norm(normalization: str | None) -> Norm:
    return "rms" if normalization == "RMSNorm" else "layer"


def _experts(size: ModuleArchitecture) -> MixtureOfExperts | None:
    if size.num_moe_experts is None:
        return None
    return MixtureOfExperts(
        experts=size.num_moe_experts,
        top_k=size.moe_router_topk or MEGATRON_TOP_K,
        ffn=size.moe_ffn_hidden_size or size.feed_forward_size,
        shared_ffn=size.moe_shared_expert_intermediate_size or 0,
        dense_layers=size.first_k_dense_replace or 0,
        router_bias=bool(size.moe_router_enable_expert_bias),
        shared_gate=bool(size.moe_shared_expert_gate),
    )


def _latent_attention(size: ModuleArchitecture) -> LatentAttention | None:
    if not size.multi_latent_attention:
        return None
    return LatentAttention(
        q_rank=size.q_lora_rank or 0,
        kv_rank=size.kv_lora_rank or 0,
        nope_dim=size.qk_head_dim or 0,
        rope_dim=size.qk_pos_emb_head_dim or 0,
        v_dim=size.v_head_dim or 0,
    )


def _branch(name: str, size: ModuleArchitecture, language: ModuleArchitecture) -> EncoderBranch:
    """Return an encoder and its projector; by default inside as wide as the language model's."""
    encoder = _encoder(name, size)
    merged = size.merge_size**2 if size.modality == "vision" else size.merge_size
    return EncoderBranch(name, encoder, _projector(size, size.hidden_size * merged, language))


def _encoder(name: str, size: ModuleArchitecture) -> Encoder:
    if size.modality == "audio":
        return _audio_encoder(name, size)
    return _text_head(name, size) if size.modality == "text" else _vision_encoder(name, size)


def _projector(size: ModuleArchitecture, inward: int, language: ModuleArchitecture) -> Projector:
    said = size.projector or ProjectorArchitecture()
    inside = said.hidden_sizes
    widths = (language.feed_forward_size,) if inside is None else tuple(inside)
    norm, copied = said.normalization, said.deepstack_normalization
    return Projector(
        (inward, *widths, language.hidden_size),
        bias=said.add_bias_linear is not False,
        norm=None if norm is None else (_norm(norm), said.norm_size or size.hidden_size),
        copies=said.deepstack_copies or 0,
        copy_norm=None if copied is None else (_norm(copied), said.deepstack_norm_size or inward),
    )


def _vision_encoder(name: str, size: ModuleArchitecture) -> VisionEncoder:
    """Return a ViT; of the learned positions in front only the class token has an embedding."""
    geometry = image_geometry(size)
    learned = size.has_learned_positions(by_default=True)
    table = size.max_position_embeddings or geometry.patches + size.class_token
    return VisionEncoder(
        name=name,
        net=_net(size, causal=False),
        image_size=math.isqrt(geometry.height * geometry.width),
        patch_size=geometry.patch_size,
        channels=geometry.num_channels,
        frames_per_patch=size.temporal_patch_size or 1,
        merge=geometry.merge_size,
        positions=table if learned else 0,
        class_token=size.class_token,
        registers=size.num_registers,
        patch_bias=size.patch_bias is not False,
        norms=1 if size.outer_norms is None else size.outer_norms,
        head="attention" if size.pooling_head else "none",
    )


def _audio_encoder(name: str, size: ModuleArchitecture) -> AudioEncoder:
    geometry = audio_geometry(size)
    return AudioEncoder(name, _net(size, causal=False), geometry.mel_bins, geometry.positions)


def _text_head(name: str, size: ModuleArchitecture) -> TextEncoder:
    return TextEncoder(name, _net(size, causal=True), size.vocab_size, size.seq_length)
