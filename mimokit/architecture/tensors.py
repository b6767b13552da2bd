"""The tensors of a module on a rank: their names in the whole module, shapes, and what is cut.

They are those of the networks that mimokit's engine builds. Experts, latent attention, layers of
multi-token prediction, pooling heads and projectors that are not two matrices are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mimokit.architecture.layer_split import stage_layers
from mimokit.architecture.modules import (
    AudioEncoder,
    Encoder,
    EncoderBranch,
    LanguageModel,
    Projector,
    TextEncoder,
    VisionEncoder,
)
from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.architecture.parameters_on_rank import Module
from mimokit.architecture.transformer import Norm, Transformer

Shape = tuple[int, ...]

PROJECTOR_NAME = "input_projections.0."
"""Where Megatron's modality submodules have the projector."""

ENCODER_NAMES: dict[type[Encoder], str] = {
    VisionEncoder: "encoders.vit_encoder.",
    AudioEncoder: "encoders.whisper_encoder.",
    TextEncoder: "encoders.text_encoder.",
}
"""Where they have the encoder."""

_KERNEL = 3
"""Width of the convolutions in front of an audio encoder."""


@dataclass(frozen=True, slots=True)
class ModuleTensor:
    """A tensor of a module on a rank.

    Attributes:
        name: in the whole module; a layer has its number there.
        whole: shape of the whole tensor, without the padding of a vocabulary.
        shape: of the shard on the rank.
        axis: the dimension that tensor parallelism cuts; None: every rank has the whole tensor.
    """

    name: str
    whole: Shape
    shape: Shape
    axis: int | None = None

    @property
    def entries(self) -> int:
        """Entries of the shard."""
        return math.prod(self.shape)

    def real_entries(self, tensor_rank: int) -> int:
        """Return the entries of the shard of a tensor-parallel rank, without padding."""
        if self.axis is None:
            return self.entries
        length = self.shape[self.axis]
        left = self.whole[self.axis] - tensor_rank * length
        return self.entries // length * max(0, min(length, left))


def module_tensors(module: Module, sizes: ParallelSizes, stage: int) -> tuple[ModuleTensor, ...]:
    """Return the tensors of a module on the ranks of a stage that the engine's networks have.

    Args:
        module: a language model, or an encoder with its projector.
    """
    first, last = stage == 0, stage == int(sizes.pipeline) - 1
    cut = _Cutter(int(sizes.tensor))
    if isinstance(module, LanguageModel):
        if module.next_token_layers:
            return ()
        layers = _layers(module.net, sizes, stage, cut, "")
        return (*layers, *_language_ends(module, cut, first, last))
    prefix = ENCODER_NAMES[type(module.encoder)]
    tensors = list(_layers(module.encoder.net, sizes, stage, cut, prefix))
    if first:
        tensors += _in_front(module.encoder, prefix)
    if last:
        tensors += _behind(module, cut, prefix)
    return tuple(tensors)


@dataclass(frozen=True)
class _Cutter:
    """Makes tensors that tensor parallelism cuts."""

    ranks: int

    def __call__(self, name: str, axis: int, *shape: int, padded: int = 0) -> ModuleTensor:
        """Return the shard of a tensor; `padded` rows are cut in place of those it has."""
        length = (padded or shape[axis]) // self.ranks
        return ModuleTensor(name, shape, (*shape[:axis], length, *shape[axis + 1 :]), axis)

    def columns(
        self, name: str, rows: int, width: int, bias: int | None = None
    ) -> Iterator[ModuleTensor]:
        """Yield a matrix whose outputs are cut, and its bias of so many entries."""
        yield self(f"{name}.weight", 0, rows, width)
        if bias is not None:
            yield self(f"{name}.bias", 0, bias)

    def rows(self, name: str, rows: int, width: int, bias: bool) -> Iterator[ModuleTensor]:
        """Yield a matrix whose inputs are cut, and its bias, which is whole."""
        yield self(f"{name}.weight", 1, rows, width)
        if bias:
            yield _uncut(f"{name}.bias", rows)


def _uncut(name: str, *shape: int) -> ModuleTensor:
    return ModuleTensor(name, shape, shape)


def _norm(name: str, kind: Norm, width: int) -> Iterator[ModuleTensor]:
    yield _uncut(f"{name}.weight", width)
    if kind == "layer":
        yield _uncut(f"{name}.bias", width)


def _layers(
    net: Transformer, sizes: ParallelSizes, stage: int, cut: _Cutter, prefix: str
) -> Iterator[ModuleTensor]:
    """Yield the tensors of the layers of a stage."""
    if net.moe is not None or net.mla is not None:
        return
    layers_of = [
        int(stage_layers(net.layers, net.layers, sizes, index).total) for index in range(stage + 1)
    ]
    for number in range(sum(layers_of[:-1]), sum(layers_of)):
        yield from _layer(net, cut, f"{prefix}decoder.layers.{number}.")


def _layer(net: Transformer, cut: _Cutter, name: str) -> Iterator[ModuleTensor]:
    query, key, attention = net.heads * net.head_dim, net.kv_heads * net.head_dim, "self_attention."
    bias = query + (1 + net.key_bias) * key if net.qkv_bias else None
    yield from _norm(f"{name}input_layernorm", net.norm, net.hidden)
    yield from cut.columns(f"{name}{attention}linear_qkv", query + 2 * key, net.hidden, bias)
    if net.qk_norm:
        for kind in ("q", "k"):
            yield _uncut(f"{name}{attention}{kind}_layernorm.weight", net.head_dim)
    yield from cut.rows(f"{name}{attention}linear_proj", net.hidden, query, net.output_bias)
    yield from _norm(f"{name}pre_mlp_layernorm", net.norm, net.hidden)
    inner = net.ffn * (2 if net.gated else 1)
    bias = inner if net.ffn_bias else None
    yield from cut.columns(f"{name}mlp.linear_fc1", inner, net.hidden, bias)
    yield from cut.rows(f"{name}mlp.linear_fc2", net.hidden, net.ffn, net.ffn_bias)


def _language_ends(
    model: LanguageModel, cut: _Cutter, first: bool, last: bool
) -> Iterator[ModuleTensor]:
    """Yield embedding, positions, last norm and output layer.

    A tied output layer is the embedding; the last of several stages has a copy of it.
    """
    width, embedding = model.net.hidden, "embedding.word_embeddings.weight"
    padded = int(model.padded_vocab(cut.ranks))
    if first or (last and model.tied):
        yield cut(embedding, 0, model.vocab, width, padded=padded)
    if first and model.positions:
        yield _uncut("embedding.position_embeddings.weight", model.positions, width)
    if last:
        yield from _norm("decoder.final_layernorm", model.net.norm, width)
        if not model.tied:
            yield cut("output_layer.weight", 0, model.vocab, width, padded=padded)


def _in_front(encoder: Encoder, prefix: str) -> Iterator[ModuleTensor]:
    """Yield what an encoder has in front of its layers."""
    width = encoder.net.hidden
    positions = _uncut(f"{prefix}position_embedding", encoder.positions, width)
    if isinstance(encoder, VisionEncoder):
        pixels = encoder.channels * encoder.frames_per_patch * encoder.patch_size**2
        yield _uncut(f"{prefix}patch_embedding.weight", width, pixels)
        if encoder.patch_bias:
            yield _uncut(f"{prefix}patch_embedding.bias", width)
        if encoder.class_token:
            yield _uncut(f"{prefix}class_token", 1, width)
        if encoder.registers:
            yield _uncut(f"{prefix}registers", encoder.registers, width)
        if encoder.norms > 1:
            yield from _norm(f"{prefix}pre_layernorm", encoder.net.norm, width)
    elif isinstance(encoder, AudioEncoder):
        for name, inputs in (("frames", encoder.mel_bins), ("positions", width)):
            yield _uncut(f"{prefix}{name}.weight", width, inputs, _KERNEL)
            yield _uncut(f"{prefix}{name}.bias", width)
    else:
        yield _uncut(f"{prefix}word_embedding", encoder.vocab, width)
    if encoder.positions:
        yield positions


def _behind(branch: EncoderBranch, cut: _Cutter, prefix: str) -> Iterator[ModuleTensor]:
    """Yield the norm behind an encoder's layers, and the projector."""
    encoder = branch.encoder
    if not isinstance(encoder, VisionEncoder) or (encoder.norms and encoder.norm_after):
        yield from _norm(f"{prefix}decoder.final_layernorm", encoder.net.norm, encoder.net.hidden)
    yield from _projector(branch.projector, cut)


def _projector(projector: Projector, cut: _Cutter) -> Iterator[ModuleTensor]:
    if len(projector.widths) != 3 or projector.norm is not None or projector.copies:
        return
    width, inner, made = projector.widths
    name = f"{PROJECTOR_NAME}encoder."
    bias = inner if projector.bias else None
    yield from cut.columns(f"{name}linear_fc1", inner, width, bias)
    yield from cut.rows(f"{name}linear_fc2", made, inner, projector.bias)
