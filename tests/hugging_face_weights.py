"""Tiny checkpoints of random weights in the formats of Hugging Face, made by `transformers`."""

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
}
GROUPED: dict[str, Any] = {
    **SIZES, "num_key_value_heads": 4, "vocab_size": 101, "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}  # fmt: skip
VISION: dict[str, Any] = {**SIZES, "image_size": 8, "patch_size": 4}
TEXT: dict[str, Any] = {**SIZES, "vocab_size": 61, "max_position_embeddings": 16}


def _llama(**changed: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**{**GROUPED, **changed}))


def _llama_with_biases() -> Any:
    return _llama(num_key_value_heads=2, attention_bias=True, mlp_bias=True)


def _mistral() -> Any:
    import torch
    from transformers import MistralConfig, MistralForCausalLM

    sizes = {**GROUPED, "head_dim": 8, "sliding_window": 4}
    return MistralForCausalLM(MistralConfig(**sizes)).to(torch.bfloat16)


def _qwen2() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {**GROUPED, "num_key_value_heads": 2, "tie_word_embeddings": True}
    windows = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}
    return Qwen2ForCausalLM(Qwen2Config(**sizes, **windows))


def _qwen3() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    yarn = {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 2.0,
        "original_max_position_embeddings": 16,
    }  # fmt: skip
    sizes = {**GROUPED, "num_key_value_heads": 2, "head_dim": 8, "attention_bias": True}
    sizes["rope_parameters"] = yarn
    return Qwen3ForCausalLM(Qwen3Config(**sizes))


def _mixtral() -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return MixtralForCausalLM(MixtralConfig(**{**GROUPED, "head_dim": 4, **experts}))


def _qwen2_moe() -> Any:
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    experts = {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40, "mlp_only_layers": [0],
    }  # fmt: skip
    return Qwen2MoeForCausalLM(Qwen2MoeConfig(**GROUPED, **experts))


def _qwen3_moe() -> Any:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    experts = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
    sizes = {**GROUPED, "head_dim": 8, "norm_topk_prob": True}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts))


def _mimo(**changed: Any) -> Any:
    from tests.mimo import mimo_model

    return mimo_model(**changed)


def _phi3() -> Any:
    from transformers import Phi3Config, Phi3ForCausalLM

    return Phi3ForCausalLM(Phi3Config(**GROUPED, pad_token_id=0, eos_token_id=2))


def _gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=101, n_positions=24, n_embd=32, n_layer=4, n_head=8)
    return GPT2LMHeadModel(config)


def _clip_tower() -> Any:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    return CLIPVisionModel(CLIPVisionConfig(**VISION))


def _siglip_tower() -> Any:
    from transformers import SiglipVisionConfig, SiglipVisionModel

    return SiglipVisionModel(SiglipVisionConfig(**VISION))


def _clip() -> Any:
    from transformers import CLIPConfig, CLIPModel

    return CLIPModel(CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=16))


def _siglip() -> Any:
    from transformers import SiglipConfig, SiglipModel

    return SiglipModel(SiglipConfig(text_config=TEXT, vision_config=VISION))


def _llava() -> Any:
    import torch
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    vision = {"model_type": "clip_vision_model", **VISION}
    config = LlavaConfig(
        vision_config=vision, text_config={"model_type": "llama", **GROUPED}, image_token_index=100
    )
    return LlavaForConditionalGeneration(config).to(torch.float16)


MAKERS: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "llama_with_biases": _llama_with_biases,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "mimo": _mimo,
    "mimo_tied": functools.partial(_mimo, tied=True),
    "phi3": _phi3,
    "gpt2": _gpt2,
    "clip_tower": _clip_tower,
    "siglip_tower": _siglip_tower,
    "clip": _clip,
    "siglip": _siglip,
    "llava": _llava,
}
"""Name -> the maker of a model. Llama with biases, Qwen2 and Qwen3 have 2 groups, the other
language models 4 (GPT-2: 8). MiMo has 2 groups, 8 layers and 2 that predict further tokens. Mistral
has windows, Qwen2 in its last layers; Mistral is in bf16 and in several files, LLaVA in fp16."""

MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe")
"""Read by the module that starts from them; weights of whole models have no experts."""
WHOLE = tuple(name for name in MAKERS if name not in (*MIXTURES, "mimo_tied"))

SHARD_SIZES = {"mistral": "20KB"}


@functools.cache
def checkpoint(name: str, std: float = 1.0) -> Path:
    """Return the directory of a checkpoint; it is made once per process.

    Every parameter is random, norms and biases too, so that none can replace another.

    Args:
        name: of `MAKERS`.
        std: standard deviation of the parameters. Large ones amplify rounding: choose a small one
            to compare what networks compute.
    """
    import torch

    torch.manual_seed(sum(name.encode()))
    model = MAKERS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=std)
    path = kept_folder() / (name if std == 1.0 else f"{name}-{std}")
    model.save_pretrained(path, max_shard_size=SHARD_SIZES.get(name, "1GB"))
    return path


@functools.cache
def kept_folder() -> Path:
    """Return a folder that is removed when the process ends."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    folder = tempfile.TemporaryDirectory(prefix="mimokit-checkpoints-")
    _kept.append(folder)  # removed when the process ends
    return Path(folder.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []
