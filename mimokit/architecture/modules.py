"""Language models, encoders with projectors, decoders, and models made of several of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

from mimokit.architecture.encoders import (
    ENCODER_NAMES,
    AudioEncoder,
    Described,
    Encoder,
)
from mimokit.architecture.tensor_cut import TensorCut, padded_vocabulary
from mimokit.architecture.tensor_rows import (
    End,
    ModuleTensor,
    Tensors,
    cut_inputs,
    cut_outputs,
    norm,
    parameters_of,
    uncut,
)
from mimokit.architecture.transformer import Transformer, layer_rows
from mimokit.config import ModuleArchitecture
from mimokit.config.meaning import Normalization
from mimokit.config.sizes import Numbers

PROJECTOR_NAME = "input_projections.0."
"""Where Megatron's modality submodules have the projector."""

EMBEDDING, OUTPUT_LAYER = "embedding.word_embeddings.weight", "output_layer.weight"


@dataclass(frozen=True)
class LanguageModel(Described):
    """A decoder-only language model.

    Attributes:
        positions: learned position embeddings; 0 for rotary positions.
        next_token_layers: extra layers for multi-token prediction (DeepSeek-V3's MTP); not
            among the published parameters.
        vocab_multiple: the embedding is padded to a multiple of this times the tensor parallel
            size.
    """

    vocab: int
    tied: bool
    positions: int
    next_token_layers: int
    vocab_multiple: int

    @property
    def parameters(self) -> int:
        """All parameters as published: without vocabulary padding and multi-token prediction."""
        published = replace(self, next_token_layers=0)
        outside = (row for row in published.ends() if row.copy_of is None)
        return self.net.parameters + parameters_of(outside).total

    def ends(self, experts: int | None = None) -> Tensors:
        """Yield the tensors outside its layers.

        Args:
            experts: of a layer that predicts tokens further on, how many; None: all.
        """
        # A tied output layer is the embedding; the last of several stages has a copy of it.
        words = TensorCut((self.vocab, self.net.hidden), 0, multiple=self.vocab_multiple)
        yield ModuleTensor(EMBEDDING, words, End.FIRST)
        if self.positions:
            name = "embedding.position_embeddings.weight"
            yield uncut(name, End.FIRST, self.positions, self.net.hidden)
        yield from norm("decoder.final_layernorm", self.net.norm, self.net.hidden, End.LAST)
        if self.tied:
            yield ModuleTensor(OUTPUT_LAYER, words, End.LAST_COPY, copy_of=EMBEDDING)
        else:
            yield ModuleTensor(OUTPUT_LAYER, words, End.LAST)
        if self.next_token_layers:
            yield from self._further_tokens(words, experts)

    def _further_tokens(self, words: TensorCut, experts: int | None) -> Tensors:
        # The last of several stages has a copy of the embedding, which a tied output layer is.
        net = self.net
        if not self.tied:
            yield ModuleTensor(EMBEDDING, words, End.LAST_COPY, copy_of=EMBEDDING)
        for number in range(self.next_token_layers):
            name = f"mtp.layers.{number}."
            for each in ("enorm", "hnorm", "final_layernorm"):
                yield from norm(f"{name}{each}", net.norm, net.hidden, End.LAST)
            joined = net.hidden, 2 * net.hidden
            yield from cut_outputs(f"{name}eh_proj", End.LAST, joined, None)
            layer = f"{name}mtp_model_layer."
            yield from layer_rows(net, net.moe, layer, End.LAST, experts)

    def section(self, seq_length: int, tensor: int = 1) -> dict[str, Any]:
        """Return the section of a config, padded where ranks do not divide its vocabulary."""
        section = {**self.network.section(), "seq_length": seq_length}
        if self.vocab % tensor:
            section["make_vocab_size_divisible_by"] = self.vocab_multiple
        return section

    def padded_vocab(self, tensor: Numbers) -> Numbers:
        """Return the rows of the embedding as Megatron pads them for tensor parallel sizes."""
        return padded_vocabulary(self.vocab, self.vocab_multiple, tensor)


@dataclass(frozen=True)
class Projector:
    """Matrices that project encoder outputs to the width of the language model.

    Attributes:
        widths: input, inner and output widths; two widths make one matrix.
        norm: kind and width of a norm before the matrices, or None.
        inner_layers: layers, from 1, whose outputs have equal projectors (Qwen3-VL's deepstack).
        copy_norm: kind and width of the norm of such a copy.
    """

    widths: tuple[int, ...]
    bias: bool = True
    norm: tuple[Normalization, int] | None = None
    inner_layers: tuple[int, ...] = ()
    copy_norm: tuple[Normalization, int] | None = None

    @property
    def copies(self) -> int:
        """Projectors of inner layers."""
        return len(self.inner_layers)

    @property
    def row_width(self) -> int:
        """Numbers of a row for the language model: of the last layer, then of inner ones."""
        return self.widths[-1] * (1 + self.copies)

    @property
    def column_widths(self) -> tuple[int, ...]:
        """Outputs that ranks share: of the first matrix, and of every second one after it."""
        return self.widths[1::2]

    @property
    def meetings(self) -> int:
        """How often tensor-parallel ranks meet in a pass, copies included: behind every pair of
        matrices, and behind a last one without a partner.
        """
        return len(self.widths) // 2 * (1 + self.copies)

    @property
    def matrices(self) -> int:
        """Parameters of the matrices of one projector."""
        return sum(a * b for a, b in zip(self.widths, self.widths[1:], strict=False))

    def rows(self, name: str) -> Tensors:
        """Yield its matrices and those of copies; ranks share outputs and inputs in turn."""
        yield from self._matrices(f"{name}encoder.", self.norm)
        for number in range(self.copies):
            yield from self._matrices(f"{name}inner.{number}.encoder.", self.copy_norm)

    def _matrices(self, name: str, in_front: tuple[Normalization, int] | None) -> Tensors:
        pairs = list(itertools.pairwise(self.widths))
        plain = len(pairs) == 2 and in_front is None
        if in_front is not None:
            yield from norm(f"{name}norm", *in_front, End.LAST)
        for number, (inward, outward) in enumerate(pairs):
            matrix = f"{name}linear_fc{number + 1}" if plain else f"{name}matrices.{number}"
            if number % 2:
                yield from cut_inputs(matrix, End.LAST, (outward, inward), self.bias)
            else:
                bias = outward if self.bias else None
                yield from cut_outputs(matrix, End.LAST, (outward, inward), bias)


@dataclass(frozen=True)
class EncoderBranch:
    """An encoder and its projector, which are one module of a layout.

    Attributes:
        features: the part of the encoder whose output the projector takes, as a network; None
            where it is all of it.
        others: projectors for the other modules that it feeds, behind the first.
    """

    name: str
    encoder: Encoder
    projector: Projector
    features: Encoder | None = field(default=None, compare=False)
    others: tuple[Projector, ...] = ()
    next_token_layers = 0

    @property
    def positions_of_a_row(self) -> int:
        """Positions that become a row for the next module; projectors of audio merge them."""
        if isinstance(self.encoder, AudioEncoder):
            return self.projector.widths[0] // self.encoder.net.hidden
        return self.encoder.positions_of_a_row

    @property
    def projectors(self) -> tuple[Projector, ...]:
        """All of its projectors, one for each module that it feeds."""
        return (self.projector, *self.others)

    @property
    def projections(self) -> int:
        """Numbers in the matrices of all projectors, copies included."""
        return sum(projector.matrices * (1 + projector.copies) for projector in self.projectors)

    @property
    def net(self) -> Transformer:
        """The layers of its encoder."""
        return self.encoder.net

    @property
    def network(self) -> ModuleArchitecture:
        """What a config states of its encoder."""
        return self.encoder.network

    @property
    def parameters(self) -> int:
        """Parameters of encoder and projectors."""
        return self.encoder.parameters + parameters_of(self._projectors()).total

    def ends(self, experts: int | None = None) -> Tensors:
        """Yield the tensors outside its layers; no expert is among them."""
        prefix = ENCODER_NAMES[type(self.encoder)]
        yield from self.encoder.in_front(prefix)
        yield from self.encoder.behind(prefix)
        yield from self._projectors()

    def _projectors(self) -> Tensors:
        yield from self.projector.rows(PROJECTOR_NAME)
        for number, other in enumerate(self.others):
            yield from other.rows(f"{PROJECTOR_NAME}others.{number}.")

    @property
    def computed(self) -> EncoderBranch:
        """The branch with what a run computes: an encoder without layers that nothing reads."""
        return self if self.features is None else replace(self, encoder=self.features)


@dataclass(frozen=True)
class DecoderHead(Described):
    """A text decoder behind the language model: a projection, layers and an output layer."""

    vocab: int
    inputs: int
    positions: int
    next_token_layers = 0

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.net.parameters + parameters_of(self.ends()).total

    def ends(self, experts: int | None = None) -> Tensors:
        """Yield the tensors outside its layers; no expert is among them."""
        width = self.net.hidden
        yield uncut("projection", End.FIRST, width, self.inputs)
        if self.positions:
            yield uncut("position_embedding", End.FIRST, self.positions, width)
        yield from norm("decoder.final_layernorm", self.net.norm, width, End.LAST)
        yield ModuleTensor(OUTPUT_LAYER, TensorCut((self.vocab, width), 0), End.LAST)


@dataclass(frozen=True)
class MultimodalModel:
    """Encoders that feed a language model, and decoders that it feeds.

    Attributes:
        decoders: modules behind the language model; of images an `EncoderBranch`.
        feeds: (module, modules that it feeds), of each that does not feed the language model alone:
            encoders that feed adapters, and the language model if it feeds decoders.
    """

    name: str
    language: LanguageModel
    branches: tuple[EncoderBranch, ...]
    decoders: tuple[DecoderHead | EncoderBranch, ...] = ()
    feeds: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def topology(self) -> dict[str, tuple[str, ...]]:
        """Module -> the modules that it feeds, for every module."""
        language = self.language.name
        usual = {branch.name: (language,) for branch in self.branches}
        ends = dict.fromkeys((language, *(decoder.name for decoder in self.decoders)), ())
        return {**usual, **ends, **dict(self.feeds)}

    @property
    def parameters(self) -> int:
        """Parameters of all modules."""
        encoders = sum(branch.parameters for branch in self.branches)
        decoders = sum(decoder.parameters for decoder in self.decoders)
        return self.language.parameters + encoders + decoders

    @property
    def computed(self) -> MultimodalModel:
        """The model with what a run computes of its encoders."""
        return replace(self, branches=tuple(branch.computed for branch in self.branches))


Model = LanguageModel | Encoder | MultimodalModel

Module = LanguageModel | EncoderBranch | DecoderHead
