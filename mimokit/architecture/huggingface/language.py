"""Hugging Face configs of language models."""

from collections.abc import Mapping
from typing import Any

from mimokit.architecture.huggingface.fields import Fields
from mimokit.architecture.huggingface.functions import computed_fields
from mimokit.config.meaning import INIT_STD

LLAMA_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
"""transformers `LlamaConfig`: defaults for a nested text_config."""

_HEAD_DIMS: Mapping[str, int] = {"qwen3": 128, "qwen3_vl_text": 128}
"""Model type -> head_dim of transformers' config class; of others hidden_size / heads."""

_FURTHER_TOKENS = ("deepseek_v2", "deepseek_v3", "mimo")
"""Families that may have layers of multi-token prediction."""

LANGUAGE_TYPES = (
    "llama", "mistral", "mimo", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "phi3",
    "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text", "deepseek_v2",
    "deepseek_v3", "gpt2",
)  # fmt: skip


def language_fields(fields: Fields, kind: str, tied: bool = False) -> dict[str, Any]:
    """Return the network of a language model whose `model_type` is `kind`, without a length."""
    if kind == "gpt2":
        return _gpt2(fields)
    network = _latent(fields, kind) if kind.startswith("deepseek") else _grouped(fields, kind)
    further = fields.size_or("num_nextn_predict_layers", 0) if kind in _FURTHER_TOKENS else 0
    return {
        **network,
        "num_layers": fields.size("num_hidden_layers"),
        "ffn_hidden_size": fields.size("intermediate_size"),
        "gated_linear_unit": True,
        "normalization": "RMSNorm",
        **computed_fields(fields, kind),
        "init_std": fields.number_or("initializer_range", INIT_STD),
        "vocab_size": fields.size("vocab_size"),
        "tied_embeddings": fields.flag("tie_word_embeddings", default=tied),
        "mtp_num_layers": further,
    }


def _grouped(fields: Fields, kind: str) -> dict[str, Any]:
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    kv_heads = fields.size_or("num_key_value_heads", heads, least=1)
    fields.must_divide(kv_heads, heads, "num_key_value_heads", "num_attention_heads")
    head_dim = _HEAD_DIMS.get(kind)
    if head_dim is None and "head_dim" not in fields:
        fields.must_divide(heads, hidden, "num_attention_heads", "hidden_size")
    qwen2 = kind.startswith(("qwen2", "mimo"))
    bias = fields.flag("attention_bias")
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_query_groups": kv_heads,
        "kv_channels": fields.size_or("head_dim", head_dim or hidden // heads, least=1),
        "add_qkv_bias": qwen2 or bias,
        "add_attention_output_bias": bias and not qwen2,
        "add_bias_linear": fields.flag("mlp_bias"),
        "qk_layernorm": kind.startswith("qwen3"),
        **_experts(fields, kind),
        **_windows(fields, kind),
    }


def _windows(fields: Fields, kind: str) -> dict[str, Any]:
    if kind in ("mistral", "mixtral", "phi3"):
        return {"window_size": fields.size_or("sliding_window", 0) or None}
    if not kind.startswith(("qwen", "mimo")) or not fields.flag("use_sliding_window"):
        return {}
    if kind == "mimo":
        fields.refuse("use_sliding_window", "only full attention is read of this family")
    layers, window = fields.size("num_hidden_layers"), fields.size_or("sliding_window", 4096)
    kinds = fields.words_of("layer_types", ("full_attention", "sliding_attention"))
    first = 0 if kind == "qwen3_moe" else min(layers, fields.size_or("max_window_layers", 28))
    stated = [number for number, of in enumerate(kinds, 1) if of == "full_attention"]
    full = stated if kinds else list(range(1, first + 1))
    windows = {"window_size": window or None, "full_attention_layers": full}
    return windows if len(full) < layers else {}


def _experts(fields: Fields, kind: str) -> dict[str, Any]:
    if kind == "mixtral":
        experts = fields.size("num_local_experts")
        of_kind: dict[str, Any] = {"moe_ffn_hidden_size": fields.size("intermediate_size")}
    elif "moe" in kind:
        shared = fields.size_or("shared_expert_intermediate_size", 0)
        renamed = "num_local_experts" in fields and "num_experts" not in fields  # transformers 5
        experts = fields.size("num_local_experts" if renamed else "num_experts")
        of_kind = {
            "moe_ffn_hidden_size": fields.size("moe_intermediate_size"),
            "moe_shared_expert_intermediate_size": shared or None,
            "moe_shared_expert_gate": shared > 0,
            "moe_router_pre_softmax": not fields.flag("norm_topk_prob"),
            "first_k_dense_replace": _leading(fields),
        }
    else:
        return {}
    return {**_routed(fields, experts), **of_kind}


def _routed(fields: Fields, experts: int) -> dict[str, Any]:
    chosen = fields.size("num_experts_per_tok")
    if chosen > experts:
        fields.refuse("num_experts_per_tok", f"there are only {experts} experts")
    return {
        "num_moe_experts": experts, "moe_router_topk": chosen, "moe_router_pre_softmax": False,
    }  # fmt: skip


def _leading(fields: Fields) -> int:
    _check_every_layer(fields, "decoder_sparse_step")
    dense = fields.integers("mlp_only_layers")
    layers = fields.size("num_hidden_layers")
    if sorted(dense) != list(range(len(dense))) or len(dense) > layers:
        fields.refuse("mlp_only_layers", "only the first layers can be without experts")
        return 0
    return len(dense)


def _check_every_layer(fields: Fields, name: str) -> None:
    if fields.size_or(name, 1, least=1) != 1:
        fields.refuse(name, "all layers after the first dense ones must have experts; set it to 1")


def _latent(fields: Fields, kind: str) -> dict[str, Any]:
    width, layers = fields.size("moe_intermediate_size"), fields.size("num_hidden_layers")
    dense = fields.size_or("first_k_dense_replace", 0)
    if dense > layers:
        fields.refuse("first_k_dense_replace", f"there are only {layers} layers")
    _check_every_layer(fields, "moe_layer_freq")
    shared = width * fields.size_or("n_shared_experts", 0)
    return {
        "hidden_size": fields.size("hidden_size"),
        "num_attention_heads": fields.size("num_attention_heads"),
        "add_bias_linear": False,
        "multi_latent_attention": True,
        "q_lora_rank": fields.size_or("q_lora_rank", 0) or None,
        "kv_lora_rank": fields.size("kv_lora_rank"),
        "qk_head_dim": fields.size("qk_nope_head_dim"),
        "qk_pos_emb_head_dim": fields.size("qk_rope_head_dim"),
        "v_head_dim": fields.size("v_head_dim"),
        **_routed(fields, fields.size("n_routed_experts")),
        "moe_ffn_hidden_size": width,
        "moe_shared_expert_intermediate_size": shared or None,
        "first_k_dense_replace": dense,
        "moe_router_enable_expert_bias": kind == "deepseek_v3",
    }


def _gpt2(fields: Fields) -> dict[str, Any]:
    hidden, heads = fields.size("n_embd"), fields.size("n_head")
    fields.must_divide(heads, hidden, "n_head", "n_embd")
    return {
        "num_layers": fields.size("n_layer"),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "ffn_hidden_size": fields.size_or("n_inner", 4 * hidden, least=1),
        **computed_fields(fields, "gpt2"),
        "init_std": fields.number_or("initializer_range", INIT_STD),
        "vocab_size": fields.size("vocab_size"),
        "tied_embeddings": fields.flag("tie_word_embeddings", default=True),
        "position_embedding_type": "learned_absolute",
        "max_position_embeddings": fields.size("n_positions"),
    }
