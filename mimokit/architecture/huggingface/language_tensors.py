"""The tensors of language models: Llama, Mistral, Qwen2 and GPT-2."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.architecture.huggingface.checkpoint_tensors import CheckpointTensors, Source
from mimokit.architecture.modules import LanguageModel
from mimokit.architecture.tensors import EMBEDDING, OUTPUT_LAYER
from mimokit.architecture.transformer import Transformer

GROUPED_TYPES = ("llama", "mistral", "qwen2")
"""Families with Llama's names."""


def add_grouped(
    weights: CheckpointTensors, model: LanguageModel, prefix: str, head: str, name: str = ""
) -> None:
    """Add the parameters of a model with Llama's names.

    Args:
        prefix: in front of `embed_tokens.weight` in the file.
        head: name of the output layer in the file; it is passed over if embeddings are tied.
    """
    net = model.net
    weights.passed_over.append(".rotary_emb.inv_freq")
    _add_ends(weights, model, f"{prefix}embed_tokens.weight", head, name)
    for number in range(net.layers):
        ours = f"{name}decoder.layers.{number}."
        _add_grouped_layer(weights, net, f"{prefix}layers.{number}.", ours)
    weights.copy(f"{name}decoder.final_layernorm.weight", f"{prefix}norm.weight")


def _add_grouped_layer(weights: CheckpointTensors, net: Transformer, file: str, ours: str) -> None:
    norms = {"input_layernorm": "input_layernorm", "pre_mlp_layernorm": "post_attention_layernorm"}
    for norm, theirs in norms.items():
        weights.copy(f"{ours}{norm}.weight", f"{file}{theirs}.weight")
    attention, theirs = f"{ours}self_attention.", f"{file}self_attn."
    for kind in ("weight", "bias") if net.qkv_bias else ("weight",):
        tensors = [f"{theirs}{letter}_proj.{kind}" for letter in "qkv"]
        add_qkv(weights, net, f"{attention}linear_qkv.{kind}", tensors)
    for kind in ("weight", "bias") if net.output_bias else ("weight",):
        weights.copy(f"{attention}linear_proj.{kind}", f"{theirs}o_proj.{kind}")
    mlp, theirs = f"{ours}mlp.", f"{file}mlp."
    for kind in ("weight", "bias") if net.ffn_bias else ("weight",):
        pair = [f"{theirs}{product}_proj.{kind}" for product in ("gate", "up")]
        weights.stack(f"{mlp}linear_fc1.{kind}", pair)
        weights.copy(f"{mlp}linear_fc2.{kind}", f"{theirs}down_proj.{kind}")


def add_qkv(weights: CheckpointTensors, net: Transformer, name: str, tensors: list[str]) -> None:
    """Add a fused query, key and value: per group its queries, its key and its value."""
    keys = net.kv_heads * net.head_dim
    rows = dict(zip(tensors, (net.heads * net.head_dim, keys, keys), strict=True))
    weights.fuse(name, rows, _grouped_rows(net, tensors, (0, 0, 0)))


def _grouped_rows(
    net: Transformer, tensors: list[str], offsets: tuple[int, int, int]
) -> Iterator[Source]:
    """Yield the rows of every group; the offsets are those of query, key and value."""
    width = net.head_dim
    lengths = (net.heads // net.kv_heads * width, width, width)
    for group in range(net.kv_heads):
        for tensor, offset, length in zip(tensors, offsets, lengths, strict=True):
            start = offset + group * length
            yield Source(tensor, start, start + length)


def _add_ends(
    weights: CheckpointTensors, model: LanguageModel, embedding: str, head: str, name: str
) -> None:
    """Add the token embedding and the output layer, which may be tied."""
    weights.copy(f"{name}{EMBEDDING}", embedding)
    if model.tied:
        weights.passed_over.append(head)
    weights.copy(f"{name}{OUTPUT_LAYER}", embedding if model.tied else head)


def add_gpt2(weights: CheckpointTensors, model: LanguageModel, prefix: str, head: str) -> None:
    """Add the parameters of GPT-2, whose matrices are stored transposed (`Conv1D`).

    Args:
        prefix: in front of `wte.weight` in the file.
    """
    net = model.net
    weights.passed_over += [".attn.bias", ".attn.masked_bias"]
    _add_ends(weights, model, f"{prefix}wte.weight", head, "")
    weights.copy("embedding.position_embeddings.weight", f"{prefix}wpe.weight")
    for number in range(net.layers):
        _add_gpt2_layer(weights, net, f"{prefix}h.{number}.", f"decoder.layers.{number}.")
    for kind in ("weight", "bias"):
        weights.copy(f"decoder.final_layernorm.{kind}", f"{prefix}ln_f.{kind}")


def _add_gpt2_layer(weights: CheckpointTensors, net: Transformer, file: str, ours: str) -> None:
    hidden = net.hidden
    matrices = {
        "self_attention.linear_proj": "attn.c_proj",
        "mlp.linear_fc1": "mlp.c_fc",
        "mlp.linear_fc2": "mlp.c_proj",
    }
    for kind in ("weight", "bias"):
        for norm, theirs in (("input_layernorm", "ln_1"), ("pre_mlp_layernorm", "ln_2")):
            weights.copy(f"{ours}{norm}.{kind}", f"{file}{theirs}.{kind}")
        fused = f"{file}attn.c_attn.{kind}"
        thirds = _grouped_rows(net, [fused] * 3, (0, hidden, 2 * hidden))
        name = f"{ours}self_attention.linear_qkv.{kind}"
        weights.fuse(name, {fused: 3 * hidden}, thirds, transposed=True)
        for name, theirs in matrices.items():
            weights.stack(f"{ours}{name}.{kind}", [f"{file}{theirs}.{kind}"], transposed=True)
