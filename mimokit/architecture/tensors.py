"""The table of tensors: names, shapes, how each is cut, and which pipeline stage holds it.

It is of the networks that mimokit's engine builds and of the weights that it reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from mimokit.architecture.modules import (
    AudioEncoder,
    DecoderHead,
    Encoder,
    EncoderBranch,
    LanguageModel,
    Projector,
    RowEncoder,
    TextEncoder,
    VisionEncoder,
    table_of,
)
from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.architecture.parameters_on_rank import Module, further_layers, net_of, stage_spans
from mimokit.architecture.tensor_cut import Shape, Span, TensorCut
from mimokit.architecture.transformer import (
    LatentAttention,
    MixtureOfExperts,
    Norm,
    Transformer,
)

PROJECTOR_NAME = "input_projections.0."
"""Where Megatron's modality submodules have the projector."""

ENCODER_NAMES: dict[type[Encoder], str] = {
    VisionEncoder: "encoders.vit_encoder.",
    AudioEncoder: "encoders.whisper_encoder.",
    TextEncoder: "encoders.text_encoder.",
    RowEncoder: "encoders.row_encoder.",
}
"""Where they have the encoder."""

EMBEDDING, OUTPUT_LAYER = "embedding.word_embeddings.weight", "output_layer.weight"

_KERNEL = 3
"""Width of the convolutions in front of an audio encoder."""


class End(Enum):
    """Where a tensor outside the layers lies in a pipeline."""

    FIRST = "the first stage"
    LAST = "the last stage"
    LAST_COPY = "the last stage, if it is not the first as well"


@dataclass(frozen=True, slots=True)
class ModuleTensor:
    """A tensor of a module: a row of the table.

    Attributes:
        name: Megatron's, with the number that a layer has in the whole module.
        place: number of its layer, or the end of the pipeline that holds it.
        copy_of: the tensor that this one is a copy of, on another stage; only that one is saved.
        trains: whether gradients move it, where its module is not frozen.
    """

    name: str
    cut: TensorCut
    place: int | End
    copy_of: str | None = None
    trains: bool = True

    def is_on(self, stage: int, layers: tuple[Span, ...]) -> bool:
        """Whether a stage holds it."""
        if isinstance(self.place, int):
            start, stop = layers[stage]
            return start <= self.place < stop
        if self.place is End.FIRST:
            return stage == 0
        last = stage == len(layers) - 1
        return last and (self.place is End.LAST or stage > 0)


Tensors = Iterator[ModuleTensor]


def module_tensors(module: Module) -> tuple[ModuleTensor, ...]:
    """Return the tensors of a module: a language model, an encoder and projector, or a decoder."""
    if isinstance(module, EncoderBranch):
        prefix = ENCODER_NAMES[type(module.encoder)]
        return (*encoder_tensors(module.encoder, prefix), *_projectors(module))
    if isinstance(module, DecoderHead):
        output = TensorCut((module.vocab, module.net.hidden), 0)
        return (
            _uncut("projection", End.FIRST, module.net.hidden, module.inputs),
            *_positions(module, "position_embedding"),
            *_stack(module.net, ""),
            *_norm("decoder.final_layernorm", module.net.norm, module.net.hidden, End.LAST),
            ModuleTensor(OUTPUT_LAYER, output, End.LAST),
        )
    return (*_stack(module.net, ""), *_language_ends(module))


def stage_tensors(module: Module, sizes: ParallelSizes, stage: int) -> tuple[ModuleTensor, ...]:
    """Return the tensors of a module on the ranks of a stage."""
    layers = stage_spans(net_of(module).layers, sizes, further_layers(module))
    return tuple(row for row in module_tensors(module) if row.is_on(stage, layers))


def cuts_of(module: Module) -> dict[str, TensorCut]:
    """Return tensor -> how it is cut; a copy goes by the name of what it copies."""
    return {row.copy_of or row.name: row.cut for row in module_tensors(module)}


def by_name(tensors: Iterable[ModuleTensor]) -> dict[str, tuple[ModuleTensor, ...]]:
    """Return tensors by their names; a copy may have the name of what it is a copy of."""
    rows: dict[str, tuple[ModuleTensor, ...]] = {}
    for row in tensors:
        rows[row.name] = (*rows.get(row.name, ()), row)
    return rows


def encoder_tensors(encoder: Encoder, prefix: str) -> tuple[ModuleTensor, ...]:
    """Return the tensors of an encoder, with a prefix in front of their names."""
    return (*_stack(encoder.net, prefix), *_in_front(encoder, prefix), *_behind(encoder, prefix))


def _uncut(name: str, place: int | End, *shape: int) -> ModuleTensor:
    return ModuleTensor(name, TensorCut(shape), place)


def _norm(name: str, kind: Norm, width: int, place: int | End) -> Tensors:
    yield _uncut(f"{name}.weight", place, width)
    if kind == "layer":
        yield _uncut(f"{name}.bias", place, width)


def _cut_outputs(
    name: str, place: int | End, shape: tuple[int, int], bias: int | None, parts: int = 1
) -> Tensors:
    yield ModuleTensor(f"{name}.weight", TensorCut(shape, 0, parts), place)
    if bias is not None:
        yield ModuleTensor(f"{name}.bias", TensorCut((bias,), 0, parts), place)


def _cut_inputs(name: str, place: int | End, shape: tuple[int, int], bias: bool) -> Tensors:
    yield ModuleTensor(f"{name}.weight", TensorCut(shape, 1), place)
    if bias:
        yield _uncut(f"{name}.bias", place, shape[0])


def _stack(net: Transformer, prefix: str) -> Tensors:
    for number in range(net.layers):
        yield from _layer(net, f"{prefix}decoder.layers.{number}.", number)


def _layer(net: Transformer, name: str, number: int) -> Tensors:
    attention = f"{name}self_attention."
    yield from _norm(f"{name}input_layernorm", net.norm, net.hidden, number)
    if net.mla is None:
        yield from _grouped(net, attention, number)
    else:
        yield from _latent(net, net.mla, attention, number)
    output = net.hidden, net.heads * net.v_dim
    yield from _cut_inputs(f"{attention}linear_proj", number, output, net.output_bias)
    yield from _norm(f"{name}pre_mlp_layernorm", net.norm, net.hidden, number)
    if net.moe is None or number < net.moe.dense_layers:
        yield from _feed_forward(net, net.ffn, f"{name}mlp.", number)
    else:
        yield from _experts(net, net.moe, f"{name}mlp.", number)


def _grouped(net: Transformer, name: str, number: int) -> Tensors:
    # Rows of `linear_qkv` are ordered by query group (its queries, its key, its value), so that
    # equal shares of rows are whole groups as long as the ranks divide them.
    query, key = net.heads * net.head_dim, net.kv_heads * net.head_dim
    bias = query + (1 + net.key_bias) * key if net.qkv_bias else None
    yield from _cut_outputs(f"{name}linear_qkv", number, (query + 2 * key, net.hidden), bias)
    if net.qk_norm:
        for kind in ("q", "k"):
            yield _uncut(f"{name}{kind}_layernorm.weight", number, net.head_dim)


def _latent(net: Transformer, mla: LatentAttention, name: str, number: int) -> Tensors:
    """Yield the matrices of latent attention: compressions are whole, ranks share the heads."""
    query, both = net.heads * net.qk_dim, net.heads * (mla.nope_dim + mla.v_dim)
    if mla.q_rank:
        yield _uncut(f"{name}linear_q_down_proj.weight", number, mla.q_rank, net.hidden)
        yield from _norm(f"{name}q_layernorm", net.norm, mla.q_rank, number)
        yield from _cut_outputs(f"{name}linear_q_up_proj", number, (query, mla.q_rank), None)
    else:
        yield from _cut_outputs(f"{name}linear_q_proj", number, (query, net.hidden), None)
    width = mla.kv_rank + mla.rope_dim
    yield _uncut(f"{name}linear_kv_down_proj.weight", number, width, net.hidden)
    yield from _norm(f"{name}kv_layernorm", net.norm, mla.kv_rank, number)
    yield from _cut_outputs(f"{name}linear_kv_up_proj", number, (both, mla.kv_rank), None)


def _feed_forward(net: Transformer, ffn: int, name: str, number: int) -> Tensors:
    """Yield two matrices around an activation; of a gated layer the first is gate above up."""
    parts = 2 if net.gated else 1
    up, down = (parts * ffn, net.hidden), (net.hidden, ffn)
    bias = parts * ffn if net.ffn_bias else None
    yield from _cut_outputs(f"{name}linear_fc1", number, up, bias, parts)
    yield from _cut_inputs(f"{name}linear_fc2", number, down, net.ffn_bias)


def _experts(net: Transformer, moe: MixtureOfExperts, name: str, number: int) -> Tensors:
    yield _uncut(f"{name}router.weight", number, moe.experts, net.hidden)
    if net.ffn_bias:
        yield _uncut(f"{name}router.bias", number, moe.experts)
    if moe.router_bias:
        yield replace(_uncut(f"{name}router.expert_bias", number, moe.experts), trains=False)
    for expert in range(moe.experts):
        for row in _feed_forward(net, moe.ffn, f"{name}experts.local_experts.{expert}.", number):
            yield replace(row, cut=replace(row.cut, expert=expert, experts=moe.experts))
    if moe.shared_ffn:
        shared = f"{name}shared_experts."
        yield from _feed_forward(net, moe.shared_ffn, shared, number)
        if moe.shared_gate:
            yield _uncut(f"{shared}gate_weight", number, 1, net.hidden)


def _language_ends(model: LanguageModel) -> Tensors:
    # A tied output layer is the embedding; the last of several stages has a copy of it.
    words = TensorCut((model.vocab, model.net.hidden), 0, multiple=model.vocab_multiple)
    yield ModuleTensor(EMBEDDING, words, End.FIRST)
    yield from _positions(model, "embedding.position_embeddings.weight")
    yield from _norm("decoder.final_layernorm", model.net.norm, model.net.hidden, End.LAST)
    if model.tied:
        yield ModuleTensor(OUTPUT_LAYER, words, End.LAST_COPY, copy_of=EMBEDDING)
    else:
        yield ModuleTensor(OUTPUT_LAYER, words, End.LAST)
    if model.next_token_layers:
        yield from _further_tokens(model, words)


def _further_tokens(model: LanguageModel, words: TensorCut) -> Tensors:
    # The last of several stages has a copy of the embedding, which a tied output layer is already.
    net = model.net
    if not model.tied:
        yield ModuleTensor(EMBEDDING, words, End.LAST_COPY, copy_of=EMBEDDING)
    for number in range(model.next_token_layers):
        name = f"mtp.layers.{number}."
        for norm in ("enorm", "hnorm", "final_layernorm"):
            yield from _norm(f"{name}{norm}", net.norm, net.hidden, End.LAST)
        joined = net.hidden, 2 * net.hidden
        yield from _cut_outputs(f"{name}eh_proj", End.LAST, joined, None)
        for row in _layer(net, f"{name}mtp_model_layer.", net.layers + number):
            yield replace(row, place=End.LAST)


def _positions(module: LanguageModel | DecoderHead, name: str) -> Tensors:
    if module.positions:
        yield _uncut(name, End.FIRST, module.positions, module.net.hidden)


def _in_front(encoder: Encoder, prefix: str) -> Tensors:
    shapes: dict[str, Shape] = {}
    width = encoder.net.hidden
    if isinstance(encoder, VisionEncoder):
        pixels = encoder.channels * encoder.frames_per_patch * encoder.patch_size**2
        shapes["patch_embedding.weight"] = (width, pixels)
        if encoder.patch_bias:
            shapes["patch_embedding.bias"] = (width,)
        if encoder.class_token:
            shapes["class_token"] = (1, width)
        if encoder.registers:
            shapes["registers"] = (encoder.registers, width)
        if encoder.norms > 1:
            yield from _norm(f"{prefix}pre_layernorm", encoder.net.norm, width, End.FIRST)
    elif isinstance(encoder, AudioEncoder):
        for name, inputs in (("frames", encoder.mel_bins), ("positions", width)):
            shapes |= {f"{name}.weight": (width, inputs, _KERNEL), f"{name}.bias": (width,)}
    elif isinstance(encoder, TextEncoder):
        shapes["word_embedding"] = (encoder.vocab, width)
    elif encoder.inputs:
        shapes["projection"] = (width, encoder.inputs)
    if table := table_of(encoder):
        shapes["position_embedding"] = (table, width)
    for name, shape in shapes.items():
        yield _uncut(f"{prefix}{name}", End.FIRST, *shape)


def _behind(encoder: Encoder, prefix: str) -> Tensors:
    net = encoder.net
    if not isinstance(encoder, VisionEncoder) or (encoder.norms and encoder.norm_after):
        yield from _norm(f"{prefix}decoder.final_layernorm", net.norm, net.hidden, End.LAST)
    if not isinstance(encoder, VisionEncoder) or encoder.head == "none":
        return
    head = f"{prefix}head."
    yield _uncut(f"{head}probe", End.LAST, 1, 1, net.hidden)
    yield from _norm(f"{head}layernorm", "layer", net.hidden, End.LAST)
    matrices = {
        "attention.in_proj_": (3 * net.hidden, net.hidden),
        "attention.out_proj.": (net.hidden, net.hidden),
        "mlp.fc1.": (net.ffn, net.hidden),
        "mlp.fc2.": (net.hidden, net.ffn),
    }
    for name, shape in matrices.items():
        yield _uncut(f"{head}{name}weight", End.LAST, *shape)
        yield _uncut(f"{head}{name}bias", End.LAST, shape[0])


def _projectors(branch: EncoderBranch) -> Tensors:
    yield from _projector(branch.projector)
    for number, other in enumerate(branch.others):
        yield from _matrices(other, f"{PROJECTOR_NAME}others.{number}.encoder.", other.norm)


def _projector(projector: Projector) -> Tensors:
    """Yield the matrices of a projector, of which ranks share outputs and inputs in turn."""
    yield from _matrices(projector, f"{PROJECTOR_NAME}encoder.", projector.norm)
    for number in range(projector.copies):
        name = f"{PROJECTOR_NAME}inner.{number}.encoder."
        yield from _matrices(projector, name, projector.copy_norm)


def _matrices(projector: Projector, name: str, norm: tuple[Norm, int] | None) -> Tensors:
    pairs = list(itertools.pairwise(projector.widths))
    plain = len(pairs) == 2 and norm is None
    if norm is not None:
        yield from _norm(f"{name}norm", *norm, End.LAST)
    for number, (inward, outward) in enumerate(pairs):
        matrix = f"{name}linear_fc{number + 1}" if plain else f"{name}matrices.{number}"
        if number % 2:
            yield from _cut_inputs(matrix, End.LAST, (outward, inward), projector.bias)
        else:
            bias = outward if projector.bias else None
            yield from _cut_outputs(matrix, End.LAST, (outward, inward), bias)
