"""Published models as the networks of a config."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from mimokit.plan.architecture import (
    AudioEncoder,
    LanguageModel,
    Transformer,
    VisionEncoder,
    load_model,
    model_names,
)

LANGUAGE, ENCODER = "language", "encoder"


@lru_cache(maxsize=1)
def published_networks() -> dict[str, list[str]]:
    """Return the names of models whose networks a config can say, for both kinds of module.

    Mixtures of experts are left out: the networks of a config are dense.
    """
    found: dict[str, list[str]] = {LANGUAGE: [], ENCODER: []}
    for name in model_names():
        model = load_model(name)
        if isinstance(model, LanguageModel):
            if model.net.moe is None and model.net.mla is None:
                found[LANGUAGE].append(name)
        elif isinstance(model, VisionEncoder | AudioEncoder):
            found[ENCODER].append(name)
    return found


def network_fields(name: str, seq_length: int) -> dict[str, Any]:
    """Return the architecture section of a published model.

    Args:
        name: one of `published_networks`.
        seq_length: tokens of a sample, for a language model.

    Raises:
        ConfigError: there is no such model.
        ValueError: its network cannot be said in a config.
    """
    model = load_model(name)
    if isinstance(model, LanguageModel):
        tied = {"tied_embeddings": True} if model.tied else {}
        return {**_stack(model.net), "seq_length": seq_length, "vocab_size": model.vocab, **tied}
    if isinstance(model, VisionEncoder):
        return {
            **_stack(model.net),
            "seq_length": model.patches(),
            "vocab_size": 0,
            "image_size": model.image_size // model.patch_size * model.patch_size,
            "patch_size": model.patch_size,
            "num_channels": model.channels,
            "merge_size": model.merge,
            "class_token": model.class_token,
            "num_registers": model.registers,
        }
    if isinstance(model, AudioEncoder):
        return {
            **_stack(model.net),
            "seq_length": model.positions,
            "vocab_size": 0,
            "mel_bins": model.mel_bins,
        }
    raise ValueError(f"'{name}' is made of several modules; choose one of them.")


def _stack(net: Transformer) -> dict[str, Any]:
    return {
        "num_layers": net.layers,
        "hidden_size": net.hidden,
        "num_attention_heads": net.heads,
        "ffn_hidden_size": net.ffn,
    }
