"""The fields of a network: in its description and in a config, both ways.

A row pairs a field of a description (`Transformer`, `MixtureOfExperts`, `LatentAttention`,
`LanguageModel`, `VisionEncoder`, `Projector`) with the field of `ModuleArchitecture` or
`ProjectorArchitecture` that states it, and holds what an unset field means. `read` and `write`
go through the same rows, so that nothing is listed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mimokit.architecture.modules import ROTARY_BASE, VOCABULARY_MULTIPLE
from mimokit.architecture.tensor_rows import Norm
from mimokit.architecture.transformer import EPSILON, INIT_STD
from mimokit.config.base import ConfigModel

MEGATRON_TOP_K = 2
"""Experts that a token visits if a config does not say (`TransformerConfig.moe_router_topk`)."""

NORMALIZATIONS: Mapping[Norm, str] = {"rms": "RMSNorm", "layer": "LayerNorm"}
"""Kind of a norm -> its name in configs."""

NORMS: Mapping[str, Norm] = {written: norm for norm, written in NORMALIZATIONS.items()}
"""Name of a norm in configs -> its kind."""

Known = Mapping[str, Any]
"""Fields of a description whose values are known already -> their values."""


@dataclass(frozen=True)
class NetworkField:
    """One field of a network.

    Attributes:
        unset: what an unset field of the config means, given the fields of earlier rows.
    """

    own: str
    config: str
    unset: Callable[[Known], Any]
    always: bool = False


def _constant(field: str, config: str, value: object) -> NetworkField:
    return NetworkField(field, config, lambda known: value)


def _as(field: str, config: str, other: str) -> NetworkField:
    """Return a field that is as another one of the description if it is unset."""
    return NetworkField(field, config, lambda known: known[other])


def _always(field: str, config: str, value: object = None) -> NetworkField:
    return NetworkField(field, config, lambda known: value, always=True)


def _head_dim(known: Known) -> int:
    mla = known["mla"]
    width: int = known["hidden"] // known["heads"] if mla is None else mla.nope_dim + mla.rope_dim
    return width


LAYERS = (
    _always("layers", "num_layers"),
    _always("hidden", "hidden_size"),
    _always("heads", "num_attention_heads"),
    NetworkField("ffn", "ffn_hidden_size", lambda known: 4 * known["hidden"], always=True),
    _as("kv_heads", "num_query_groups", "heads"),
    NetworkField("head_dim", "kv_channels", _head_dim),
    _constant("gated", "gated_linear_unit", False),
    _constant("norm", "normalization", "layer"),
    _constant("ffn_bias", "add_bias_linear", True),
    _as("qkv_bias", "add_qkv_bias", "ffn_bias"),
    _constant("key_bias", "add_key_bias", True),
    _as("output_bias", "add_attention_output_bias", "ffn_bias"),
    _constant("qk_norm", "qk_layernorm", False),
    _constant("window", "window_size", 0),
    _constant("full_attention_layers", "full_attention_layers", 0),
    _constant("activation", "activation_func", None),
    _constant("epsilon", "layernorm_epsilon", EPSILON),
    _constant("init_std", "init_std", INIT_STD),
    _constant("dropout", "hidden_dropout", 0.0),
    _constant("score_dropout", "attention_dropout", 0.0),
)
"""Of a `Transformer`; "mla" has to be known."""

EXPERTS = (
    _always("experts", "num_moe_experts"),
    _constant("top_k", "moe_router_topk", MEGATRON_TOP_K),
    _as("ffn", "moe_ffn_hidden_size", "dense_ffn"),
    _constant("shared_ffn", "moe_shared_expert_intermediate_size", 0),
    _constant("dense_layers", "first_k_dense_replace", 0),
    _constant("router_bias", "moe_router_enable_expert_bias", False),
    _constant("shared_gate", "moe_shared_expert_gate", False),
    NetworkField("pre_softmax", "moe_router_pre_softmax", lambda known: known["top_k"] == 1),
)
"""Of a `MixtureOfExperts`; "dense_ffn", the width of a layer without experts, has to be known."""

LATENT_ATTENTION = (
    _constant("q_rank", "q_lora_rank", 0),
    _always("kv_rank", "kv_lora_rank", 0),
    _always("nope_dim", "qk_head_dim", 0),
    _always("rope_dim", "qk_pos_emb_head_dim", 0),
    _always("v_dim", "v_head_dim", 0),
)
"""Of a `LatentAttention`."""

LANGUAGE = (
    _always("vocab", "vocab_size"),
    _always("tied", "tied_embeddings"),
    _constant("next_token_layers", "mtp_num_layers", 0),
    _constant("vocab_multiple", "make_vocab_size_divisible_by", VOCABULARY_MULTIPLE),
    _constant("rotary_base", "rotary_base", ROTARY_BASE),
    _constant("rope_scaling", "rope_scaling", None),
    _constant("rotary_sections", "mrope_section", None),
    _constant("interleaved_sections", "mrope_interleaved", False),
)
"""Of a `LanguageModel`, its layers and positions aside."""

VISION = (
    _always("class_token", "class_token"),
    _constant("keeps_class_token", "keep_class_token", False),
    _constant("registers", "num_registers", 0),
    _constant("frames_per_patch", "temporal_patch_size", 1),
    _constant("patch_bias", "patch_bias", True),
    _constant("norms", "outer_norms", 1),
    _constant("norm_after", "post_layer_norm", True),
)
"""Of a `VisionEncoder`, its layers, positions and the sizes of its images aside."""

PROJECTOR = (_constant("bias", "add_bias_linear", True),)
"""Of a `Projector`, its widths and norms aside."""


def read(
    rows: tuple[NetworkField, ...], config: ConfigModel, known: Known | None = None
) -> dict[str, Any]:
    """Return field of the description -> value, of what a config states."""
    description: dict[str, Any] = {}
    for row in rows:
        stated = getattr(config, row.config)
        if stated is None:
            description[row.own] = row.unset({**(known or {}), **description})
        else:
            description[row.own] = _described(row, stated)
    return description


def _described(row: NetworkField, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return NORMS[value] if row.own == "norm" else value


def write(
    rows: tuple[NetworkField, ...], description: object, known: Known | None = None
) -> dict[str, Any]:
    """Return field of the config -> value, of a description; what unset fields mean is left out."""
    section: dict[str, Any] = {}
    values = {row.own: getattr(description, row.own) for row in rows}
    for row in rows:
        value = values[row.own]
        if row.always or value != row.unset({**(known or {}), **values}):
            section[row.config] = _written(row, value)
    return section


def _written(row: NetworkField, value: Any) -> Any:
    if isinstance(value, ConfigModel):
        return value.model_dump(mode="json")
    if isinstance(value, tuple):
        return list(value)
    return NORMALIZATIONS[value] if row.own == "norm" else value
