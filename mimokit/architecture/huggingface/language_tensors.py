"""The tensors of language models: Llama, Mistral, Qwen2 and GPT-2."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.architecture.huggingface.checkpoint_tensors import (
    CheckpointTensors,
    Cut,
    End,
    Source,
)
from mimokit.architecture.modules import LanguageModel
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
        name: in front of Megatron's names.
    """
    net = model.net
    weights.passed_over.append(".rotary_emb.inv_freq")
    _add_ends(weights, model, f"{prefix}embed_tokens.weight", head, name)
    for number in range(net.layers):
        _add_grouped_layer(weights, net, f"{prefix}layers.{number}.", name, number)
    last = f"{name}decoder.final_layernorm.weight"
    weights.whole(last, f"{prefix}norm.weight", (net.hidden,), End.LAST)


def _add_grouped_layer(
    weights: CheckpointTensors, net: Transformer, file: str, name: str, number: int
) -> None:
    ours = f"{name}decoder.layers.{number}."
    hidden, ffn, width = net.hidden, net.ffn, net.heads * net.head_dim
    norms = {"input_layernorm": "input_layernorm", "pre_mlp_layernorm": "post_attention_layernorm"}
    for norm, theirs in norms.items():
        weights.whole(f"{ours}{norm}.weight", f"{file}{theirs}.weight", (hidden,), number)
    attention, theirs = f"{ours}self_attention.", f"{file}self_attn."
    for kind in ("weight", "bias") if net.qkv_bias else ("weight",):
        tensors = [f"{theirs}{letter}_proj.{kind}" for letter in "qkv"]
        add_qkv(weights, net, f"{attention}linear_qkv.{kind}", tensors, number)
    weights.matrix(f"{attention}linear_proj.weight", f"{theirs}o_proj.weight", (hidden, width),
                 Cut.COLUMNS, number)  # fmt: skip
    if net.output_bias:
        weights.whole(f"{attention}linear_proj.bias", f"{theirs}o_proj.bias", (hidden,), number)
    mlp, theirs = f"{ours}mlp.", f"{file}mlp."
    pair = ("gate_proj", "up_proj")
    weights.stack(f"{mlp}linear_fc1.weight", {f"{theirs}{product}.weight": ffn for product in pair},
                (2 * ffn, hidden), Cut.ROWS, number)  # fmt: skip
    weights.matrix(f"{mlp}linear_fc2.weight", f"{theirs}down_proj.weight", (hidden, ffn),
                 Cut.COLUMNS, number)  # fmt: skip
    if net.ffn_bias:
        weights.stack(f"{mlp}linear_fc1.bias", {f"{theirs}{product}.bias": ffn for product in pair},
                    (2 * ffn,), Cut.ROWS, number)  # fmt: skip
        weights.whole(f"{mlp}linear_fc2.bias", f"{theirs}down_proj.bias", (hidden,), number)


def add_qkv(
    weights: CheckpointTensors, net: Transformer, name: str, tensors: list[str], number: int
) -> None:
    """Add a fused query, key and value: per group its queries, its key and its value.

    Args:
        name: Megatron's; that of a bias ends in it.
        tensors: of query, key and value.
    """
    keys = net.kv_heads * net.head_dim
    rows = dict(zip(tensors, (net.heads * net.head_dim, keys, keys), strict=True))
    sources = _grouped_rows(net, tensors, (0, 0, 0))
    shape = (sum(rows.values()),) if name.endswith("bias") else (sum(rows.values()), net.hidden)
    weights.fused(name, rows, sources, shape, Cut.ROWS, number)


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
    """Add the token embedding and the output layer.

    A tied output layer is the embedding; the last of several stages has a copy of it.
    """
    shape = (model.vocab, model.net.hidden)
    weights.matrix(f"{name}embedding.word_embeddings.weight", embedding, shape, Cut.ROWS, End.FIRST,
                 padded=True)  # fmt: skip
    if model.tied:
        weights.passed_over.append(head)
    place = End.LAST_COPY if model.tied else End.LAST
    tensor = embedding if model.tied else head
    weights.matrix(f"{name}output_layer.weight", tensor, shape, Cut.ROWS, place, padded=True)


def add_gpt2(weights: CheckpointTensors, model: LanguageModel, prefix: str, head: str) -> None:
    """Add the parameters of GPT-2, whose matrices are stored transposed (`Conv1D`).

    Args:
        prefix: in front of `wte.weight` in the file.
        head: name of the output layer.
    """
    net = model.net
    weights.passed_over += [".attn.bias", ".attn.masked_bias"]
    _add_ends(weights, model, f"{prefix}wte.weight", head, "")
    positions = (model.positions, net.hidden)
    weights.whole(
        "embedding.position_embeddings.weight", f"{prefix}wpe.weight", positions, End.FIRST
    )
    for number in range(net.layers):
        _add_gpt2_layer(weights, net, f"{prefix}h.{number}.", number)
    for kind in ("weight", "bias"):
        last = f"decoder.final_layernorm.{kind}"
        weights.whole(last, f"{prefix}ln_f.{kind}", (net.hidden,), End.LAST)


def _add_gpt2_layer(weights: CheckpointTensors, net: Transformer, file: str, number: int) -> None:
    ours, hidden, ffn = f"decoder.layers.{number}.", net.hidden, net.ffn
    for kind in ("weight", "bias"):
        across = (hidden,) if kind == "weight" else ()
        for norm, theirs in (("input_layernorm", "ln_1"), ("pre_mlp_layernorm", "ln_2")):
            weights.whole(f"{ours}{norm}.{kind}", f"{file}{theirs}.{kind}", (hidden,), number)
        fused = f"{file}attn.c_attn.{kind}"
        thirds = _grouped_rows(net, [fused] * 3, (0, hidden, 2 * hidden))
        weights.fused(f"{ours}self_attention.linear_qkv.{kind}", {fused: 3 * hidden}, thirds,
                    (3 * hidden, *across), Cut.ROWS, number, transposed=True)  # fmt: skip
        weights.stack(f"{ours}mlp.linear_fc1.{kind}", {f"{file}mlp.c_fc.{kind}": ffn},
                    (ffn, *across), Cut.ROWS, number, transposed=True)  # fmt: skip
    outputs = (
        ("self_attention.linear_proj", "attn.c_proj", hidden),
        ("mlp.linear_fc2", "mlp.c_proj", ffn),
    )
    for name, theirs, width in outputs:
        weights.matrix(f"{ours}{name}.weight", f"{file}{theirs}.weight", (hidden, width),
                     Cut.COLUMNS, number, transposed=True)  # fmt: skip
        weights.whole(f"{ours}{name}.bias", f"{file}{theirs}.bias", (hidden,), number)
