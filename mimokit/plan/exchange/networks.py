"""The networks of a model as an experiment describes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mimokit.plan.architecture import EncoderBranch, LanguageModel, Transformer, VisionEncoder


def language_network(model: LanguageModel, seq_length: int) -> dict[str, Any]:
    """Return the fields of a language model's `ModuleArchitecture`."""
    return {
        **_layers(model.net),
        "seq_length": seq_length,
        "vocab_size": model.vocab,
        "tied_embeddings": model.tied,
    }


def encoder_network(branch: EncoderBranch) -> dict[str, Any]:
    """Return the fields of an encoder's `ModuleArchitecture`."""
    encoder = branch.encoder
    network = {**_layers(encoder.net), "vocab_size": 0}
    if not isinstance(encoder, VisionEncoder):
        return {**network, "seq_length": encoder.positions, "mel_bins": encoder.mel_bins}
    cell = encoder.patch_size * encoder.merge
    return {
        **network,
        "seq_length": encoder.patches(),
        "image_size": encoder.image_size // cell * cell,
        "patch_size": encoder.patch_size,
        "num_channels": encoder.channels,
        "merge_size": encoder.merge,
        "class_token": encoder.class_token,
    }


def beyond_networks(net: Transformer) -> Iterator[str]:
    """Yield what of a stack of layers an experiment has no words for."""
    if net.kv_heads != net.heads:
        yield f"{net.kv_heads} key heads"
    if net.gated:
        yield "gated feed-forward layers"
    if net.norm != "layer":
        yield "RMSNorm"
    if net.moe is not None:
        yield f"{net.moe.experts} experts"
    if net.mla is not None:
        yield "latent attention"


def _layers(net: Transformer) -> dict[str, int]:
    return {
        "num_layers": net.layers,
        "hidden_size": net.hidden,
        "num_attention_heads": net.heads,
        "ffn_hidden_size": net.ffn,
    }
