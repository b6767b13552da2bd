"""Small configs for tests: networks like those of Hugging Face's families, in any layout."""

from typing import Any

from mimokit.config import ExperimentConfig, ModuleArchitecture
from tests.layouts import digits_config
from tests.layouts_apart import Sizes, apart_config

LLAMA: dict[str, Any] = {
    "num_layers": 4, "hidden_size": 32, "num_attention_heads": 8, "seq_length": 42,
    "vocab_size": 19, "make_vocab_size_divisible_by": 1, "num_query_groups": 2, "kv_channels": 8,
    "ffn_hidden_size": 48, "gated_linear_unit": True, "normalization": "RMSNorm",
    "layernorm_epsilon": 1e-6, "add_bias_linear": False, "rotary_base": 5e5, "init_std": 0.05,
    "rope_scaling": {"rope_type": "llama3", "original_max_position_embeddings": 16},
}  # fmt: skip
LANGUAGES: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "qwen2": {
        **LLAMA, "add_qkv_bias": True, "tied_embeddings": True,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    },
    "qwen3": {**LLAMA, "qk_layernorm": True},
    "gpt2": {
        "num_layers": 4, "hidden_size": 32, "num_attention_heads": 8, "seq_length": 42,
        "vocab_size": 19, "make_vocab_size_divisible_by": 3, "tied_embeddings": True,
        "position_embedding_type": "learned_absolute", "max_position_embeddings": 48,
        "activation_func": "gelu_tanh", "init_method": "xavier",
    },
    "geglu": {
        **LLAMA, "activation_func": "gelu", "add_qkv_bias": False, "add_bias_linear": True,
        "add_attention_output_bias": False,
    },
}  # fmt: skip
TOWER = {
    "num_layers": 2, "hidden_size": 32, "num_attention_heads": 8, "seq_length": 4, "vocab_size": 0,
    "image_size": 8, "patch_size": 4, "ffn_hidden_size": 48,
}  # fmt: skip
TOWERS: dict[str, dict[str, Any]] = {
    "clip": {
        **TOWER, "class_token": True, "outer_norms": 2, "patch_bias": False,
        "activation_func": "quick_gelu", "projector": {"hidden_sizes": [24]},
    },
    "siglip": {
        **TOWER, "layernorm_epsilon": 1e-6, "activation_func": "gelu_tanh", "outer_norms": 0,
        "projector": {"add_bias_linear": False},
    },
    "stacked": {
        **TOWER, "position_embedding_type": "learned_absolute", "max_position_embeddings": 9,
        "projector": {"hidden_sizes": [24, 20], "normalization": "RMSNorm", "norm_size": 16},
    },
    "pooled": {
        **TOWER, "class_token": True, "activation_func": "gelu_tanh", "pooling_head": True,
    },
    "linear": {
        **TOWER, "temporal_patch_size": 3, "num_registers": 1, "position_embedding_type": "rope",
        "rope_scaling": {"rope_type": "llama3", "original_max_position_embeddings": 4},
        "projector": {"hidden_sizes": [], "normalization": "LayerNorm"},
    },
}  # fmt: skip


def network_config(
    language: str, tower: str, encoder_sizes: Sizes, language_sizes: Sizes, *, apart: bool = False
) -> ExperimentConfig:
    """Return a finalized config of digits.

    Args:
        language: one of `LANGUAGES`.
        tower: one of `TOWERS`.
        encoder_sizes: (tensor, pipeline, data parallel).
        language_sizes: likewise.
        apart: on separate ranks.
    """
    if apart:
        config = apart_config(encoder_sizes, language_sizes)
    else:
        config = digits_config(encoder_sizes[::2], language_sizes[::2])
    networks = {"images": TOWERS[tower], "language_module": LANGUAGES[language]}
    for name, fields in networks.items():
        config.model.module_architectures[name] = ModuleArchitecture(**fields)
    config.data.vocab_size = LANGUAGES[language]["vocab_size"]
    if config.model.get_architecture("images").pooling_head:
        config.data.image_seq_length = 8
    config.name = f"{language} {tower}"
    config.finalize()
    return config
