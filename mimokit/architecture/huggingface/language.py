"""Hugging Face configs of language models."""

from collections.abc import Mapping
from typing import Any, get_args

from mimokit.architecture.attention import LatentAttention
from mimokit.architecture.feed_forward import MixtureOfExperts
from mimokit.architecture.huggingface.fields import Fields
from mimokit.architecture.huggingface.functions import NetworkFunctions, functions_of_section
from mimokit.architecture.modules import LanguageModel
from mimokit.architecture.transformer import Transformer
from mimokit.config.meaning import INIT_STD, Activation, usual_activation

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


def language_model(fields: Fields, kind: str, name: str, tied: bool = False) -> LanguageModel:
    """Return the language model of a config whose `model_type` is `kind`."""
    if kind == "gpt2":
        return _gpt2(fields, name)
    deepseek, functions = kind.startswith("deepseek"), functions_of_section(fields, kind)
    return LanguageModel(
        name=name,
        net=_latent(fields, kind) if deepseek else _grouped(fields, kind),
        vocab=fields.size("vocab_size"),
        tied=fields.flag("tie_word_embeddings", default=tied),
        next_token_layers=_further_tokens(fields, kind),
        rope_theta=functions.rotary_base,
        rope_scaling=functions.rotary_scaling,
        rotary_sections=functions.sections,
        interleaved_sections=kind.startswith("qwen3_vl"),
    )


def _further_tokens(fields: Fields, kind: str) -> int:
    return fields.size_or("num_nextn_predict_layers", 0) if kind in _FURTHER_TOKENS else 0


def _grouped(fields: Fields, kind: str) -> Transformer:
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    kv_heads = fields.size_or("num_key_value_heads", heads, least=1)
    fields.must_divide(kv_heads, heads, "num_key_value_heads", "num_attention_heads")
    head_dim = _HEAD_DIMS.get(kind)
    if head_dim is None and "head_dim" not in fields:
        fields.must_divide(heads, hidden, "num_attention_heads", "hidden_size")
    qwen2 = kind.startswith(("qwen2", "mimo"))
    bias = fields.flag("attention_bias")
    moe = _experts(fields, kind)
    return Transformer(
        layers=fields.size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=fields.size_or("head_dim", head_dim or hidden // heads, least=1),
        ffn=fields.size("intermediate_size"),
        qkv_bias=qwen2 or bias,
        output_bias=bias and not qwen2,
        ffn_bias=fields.flag("mlp_bias"),
        qk_norm=kind.startswith("qwen3"),
        moe=moe,
        **_windows(fields, kind),
        **_usual(fields, kind, gated=True),
    )


def _windows(fields: Fields, kind: str) -> dict[str, Any]:
    if kind in ("mistral", "mixtral", "phi3"):
        return {"window": fields.size_or("sliding_window", 0)}
    if not kind.startswith(("qwen", "mimo")) or not fields.flag("use_sliding_window"):
        return {}
    if kind == "mimo":
        fields.refuse("use_sliding_window", "only full attention is read of this family")
    layers, window = fields.size("num_hidden_layers"), fields.size_or("sliding_window", 4096)
    kinds = fields.words_of("layer_types", ("full_attention", "sliding_attention"))
    first = 0 if kind == "qwen3_moe" else min(layers, fields.size_or("max_window_layers", 28))
    stated = [number for number, of in enumerate(kinds, 1) if of == "full_attention"]
    full = tuple(stated if kinds else range(1, first + 1))
    return {"window": window, "unwindowed": full} if len(full) < layers else {}


def _usual(fields: Fields, kind: str, gated: bool) -> dict[str, Any]:
    functions = functions_of_section(fields, kind)
    return {
        "activation": activation_of(fields, functions, gated),
        "epsilon": functions.epsilon,
        "matrix_std": fields.number_or("initializer_range", INIT_STD),
    }


def activation_of(fields: Fields, functions: NetworkFunctions, gated: bool) -> Activation:
    """Return an activation, the usual one in place of one that cannot run, which is refused."""
    activation = next((each for each in get_args(Activation) if each == functions.activation), None)
    if activation is None:
        name = "activation_function" if "activation_function" in fields else "hidden_act"
        fields.refuse(name, functions.obstacles["activation"])
    return activation or usual_activation(gated)


def _experts(fields: Fields, kind: str) -> MixtureOfExperts | None:
    if kind == "mixtral":
        moe = MixtureOfExperts(
            experts=fields.size("num_local_experts"),
            top_k=fields.size("num_experts_per_tok"),
            ffn=fields.size("intermediate_size"),
        )
    elif "moe" in kind:
        shared = fields.size_or("shared_expert_intermediate_size", 0)
        renamed = "num_local_experts" in fields and "num_experts" not in fields  # transformers 5
        moe = MixtureOfExperts(
            experts=fields.size("num_local_experts" if renamed else "num_experts"),
            top_k=fields.size("num_experts_per_tok"),
            ffn=fields.size("moe_intermediate_size"),
            shared_ffn=shared,
            shared_gate=shared > 0,
            pre_softmax=not fields.flag("norm_topk_prob"),
            dense_layers=_leading(fields),
        )
    else:
        return None
    _check_top_k(fields, moe)
    return moe


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


def _check_top_k(fields: Fields, moe: MixtureOfExperts) -> None:
    if moe.top_k > moe.experts:
        fields.refuse("num_experts_per_tok", f"there are only {moe.experts} experts")


def _latent(fields: Fields, kind: str) -> Transformer:
    heads = fields.size("num_attention_heads")
    mla = LatentAttention(
        q_rank=fields.size_or("q_lora_rank", 0),
        kv_rank=fields.size("kv_lora_rank"),
        nope_dim=fields.size("qk_nope_head_dim"),
        rope_dim=fields.size("qk_rope_head_dim"),
        v_dim=fields.size("v_head_dim"),
    )
    width = fields.size("moe_intermediate_size")
    moe = MixtureOfExperts(
        experts=fields.size("n_routed_experts"),
        top_k=fields.size("num_experts_per_tok"),
        ffn=width,
        shared_ffn=width * fields.size_or("n_shared_experts", 0),
        dense_layers=fields.size_or("first_k_dense_replace", 0),
        router_bias=kind == "deepseek_v3",
    )
    _check_top_k(fields, moe)
    _check_every_layer(fields, "moe_layer_freq")
    layers = fields.size("num_hidden_layers")
    if moe.dense_layers > layers:
        fields.refuse("first_k_dense_replace", f"there are only {layers} layers")
    return Transformer(
        layers=layers,
        hidden=fields.size("hidden_size"),
        heads=heads,
        kv_heads=heads,
        head_dim=mla.nope_dim + mla.rope_dim,
        ffn=fields.size("intermediate_size"),
        moe=moe,
        mla=mla,
        **_usual(fields, kind, gated=True),
    )


def _gpt2(fields: Fields, name: str) -> LanguageModel:
    hidden, heads = fields.size("n_embd"), fields.size("n_head")
    fields.must_divide(heads, hidden, "n_head", "n_embd")
    return LanguageModel(
        name=name,
        net=Transformer(
            layers=fields.size("n_layer"),
            hidden=hidden,
            heads=heads,
            kv_heads=heads,
            head_dim=hidden // heads,
            ffn=fields.size_or("n_inner", 4 * hidden, least=1),
            gated=False,
            norm="LayerNorm",
            qkv_bias=True,
            output_bias=True,
            ffn_bias=True,
            **_usual(fields, "gpt2", gated=False),
        ),
        vocab=fields.size("vocab_size"),
        tied=fields.flag("tie_word_embeddings", default=True),
        positions=fields.size("n_positions"),
    )
