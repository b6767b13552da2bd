"""Language models, encoders, projectors, and models made of several of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from mimokit.architecture.parallel_sizes import Numbers
from mimokit.architecture.tensor_cut import padded_vocabulary
from mimokit.architecture.transformer import (
    Norm,
    Transformer,
    feed_forward,
    norm_parameters,
    stack_parameters,
)
from mimokit.config.layer_architecture import RopeScaling

VOCABULARY_MULTIPLE = 128
"""Megatron's `make_vocab_size_divisible_by`; times the tensor parallel size."""

ROTARY_BASE = 10_000.0
"""Megatron's `rotary_base`."""


@dataclass(frozen=True)
class LanguageModel:
    """A decoder-only language model.

    Attributes:
        positions: learned position embeddings; 0 for rotary positions.
        next_token_layers: extra layers for multi-token prediction (DeepSeek-V3's MTP); not
            among the published parameters.
        vocab_multiple: the embedding is padded to a multiple of this times the tensor parallel
            size.
        rotary_sections: frequencies of a head that rotate with time, height and width; None: there
            is one axis.
        interleaved_sections: those of the three axes alternate.
    """

    name: str
    net: Transformer
    vocab: int
    tied: bool = False
    positions: int = 0
    next_token_layers: int = 0
    vocab_multiple: int = VOCABULARY_MULTIPLE
    rotary_base: float = ROTARY_BASE
    rope_scaling: RopeScaling | None = None
    rotary_sections: tuple[int, ...] | None = None
    interleaved_sections: bool = False

    @property
    def parameters(self) -> int:
        """All parameters as published: without vocabulary padding and multi-token prediction."""
        tables = self.net.hidden * (self.vocab * (1 if self.tied else 2) + self.positions)
        return stack_parameters(self.net) + self.net.norm_parameters + tables

    def padded_vocab(self, tensor: Numbers) -> Numbers:
        """Return the rows of the embedding as Megatron pads them for tensor parallel sizes."""
        return padded_vocabulary(self.vocab, self.vocab_multiple, tensor)


PoolingHead = Literal["none", "attention"]


@dataclass(frozen=True)
class VisionEncoder:
    """A vision transformer, without its projector.

    Attributes:
        image_size: pixels per side that it was trained on.
        frames_per_patch: frames of a video that one patch spans.
        merge: merge x merge patches become one token before the projector.
        positions: learned position embeddings; 0 for rotary positions.
        interpolated: they are a square table that is interpolated to the rows and columns of an
            image, and there are rotary positions besides.
        registers: extra learned tokens without position embeddings.
        norms: norms outside the layers: 1 after them, 2 before and after.
        norm_after: of these, the one after the layers is there.
        head: "attention" for one attention and one feed-forward layer that pool (SigLIP).
    """

    name: str
    net: Transformer
    image_size: int
    patch_size: int
    channels: int = 3
    frames_per_patch: int = 1
    merge: int = 1
    positions: int = 0
    interpolated: bool = False
    class_token: bool = False
    keeps_class_token: bool = False
    registers: int = 0
    patch_bias: bool = True
    norms: int = 1
    norm_after: bool = True
    head: PoolingHead = "none"

    @property
    def parameters(self) -> int:
        """All parameters."""
        return stack_parameters(self.net) + self.parameters_outside_layers

    @property
    def parameters_outside_layers(self) -> int:
        """Patch embedding, positions, class token, norms and pooling head."""
        width = self.net.hidden
        pixels = self.channels * self.frames_per_patch * self.patch_size**2
        patches = pixels * width + self.patch_bias * width
        vectors = self.positions + self.class_token + self.registers
        before = max(self.norms - 1, 0) * self.net.norm_parameters
        return patches + vectors * width + before + self.parameters_after_layers

    @property
    def parameters_after_layers(self) -> int:
        """Of `parameters_outside_layers`, those after the layers: last norm and pooling head."""
        return min(self.norms, self.norm_after) * self.net.norm_parameters + self._head

    @property
    def _head(self) -> int:
        if self.head == "none":
            return 0
        width = self.net.hidden
        attention = 4 * width * (width + 1)
        mlp = sum(feed_forward(width, self.net.ffn, gated=False, bias=True))
        return width + attention + mlp + norm_parameters("layer", width)

    def patches(self, height: int | None = None, width: int | None = None) -> int:
        """Return the patches of one image; pixels default to the size trained on."""
        rows = (height or self.image_size) // self.patch_size
        columns = (width or self.image_size) // self.patch_size
        return rows * columns

    def tokens(self, height: int | None = None, width: int | None = None) -> int:
        """Return the tokens that one image becomes in the language model."""
        if self.head == "attention":
            return 1
        return self.patches(height, width) // self.merge**2 + self.keeps_class_token


class _Stack:
    """What encoders of sound, words and rows have alike: layers, and one norm behind them.

    Attributes:
        positions: of the longest item, each of which becomes a token.
        table: learned or fixed position embeddings, of which the first are used; None: as many as
            positions; 0 for rotary positions.
    """

    net: Transformer
    positions: int
    table: int | None

    @property
    def parameters(self) -> int:
        """All parameters, the position table included."""
        return stack_parameters(self.net) + self.parameters_outside_layers

    @property
    def parameters_outside_layers(self) -> int:
        """Those in front of the layers, positions and the last norm."""
        raise NotImplementedError

    @property
    def parameters_after_layers(self) -> int:
        """Of `parameters_outside_layers`, those after the layers: the last norm."""
        return self.net.norm_parameters

    def tokens(self) -> int:
        """Return the tokens of the longest item."""
        return self.positions


@dataclass(frozen=True)
class AudioEncoder(_Stack):
    """Two convolutions over a spectrogram and a stack of layers (Whisper's encoder).

    Attributes:
        positions: after the convolutions, which halve the time once.
    """

    name: str
    net: Transformer
    mel_bins: int
    positions: int
    table: int | None = None

    @property
    def parameters_outside_layers(self) -> int:
        """Convolutions (kernel 3, with biases), positions and the last norm."""
        width = self.net.hidden
        convolutions = 3 * width * (self.mel_bins + width) + 2 * width
        return convolutions + table_of(self) * width + self.net.norm_parameters


@dataclass(frozen=True)
class TextEncoder(_Stack):
    """A text head: embedding, positions and causal layers, without an output layer."""

    name: str
    net: Transformer
    vocab: int
    positions: int
    table: int | None = None

    @property
    def parameters_outside_layers(self) -> int:
        """Embedding, positions and the last norm."""
        return (self.vocab + table_of(self)) * self.net.hidden + self.net.norm_parameters


@dataclass(frozen=True)
class RowEncoder(_Stack):
    """An adapter: positions and layers over the rows of an item that another encoder has made.

    Attributes:
        inputs: width of the rows, if a matrix in front brings them to that of the layers; else 0.
    """

    name: str
    net: Transformer
    positions: int
    table: int | None = None
    inputs: int = 0

    @property
    def parameters_outside_layers(self) -> int:
        """The matrix in front, positions and the last norm."""
        return (self.inputs + table_of(self)) * self.net.hidden + self.net.norm_parameters


def table_of(encoder: VisionEncoder | AudioEncoder | TextEncoder | RowEncoder) -> int:
    """Return the position embeddings that an encoder stores."""
    if isinstance(encoder, VisionEncoder) or encoder.table is None:
        return encoder.positions
    return encoder.table


Encoder = VisionEncoder | AudioEncoder | TextEncoder | RowEncoder


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
    norm: tuple[Norm, int] | None = None
    inner_layers: tuple[int, ...] = ()
    copy_norm: tuple[Norm, int] | None = None

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
    def sharded(self) -> int:
        """Parameters of one projector that tensor parallelism cuts: matrices, and biases of those
        of which ranks share the outputs, every other one.
        """
        return self.matrices + self.bias * sum(self.column_widths)

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

    @property
    def parameters(self) -> int:
        """All parameters, copies included."""
        projection = self.matrices + self.bias * sum(self.widths[1:])
        norms = norm_parameters(*self.norm) if self.norm else 0
        copied = norm_parameters(*self.copy_norm) if self.copy_norm else 0
        return projection + norms + self.copies * (projection + copied)


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
    features: VisionEncoder | None = field(default=None, compare=False)
    others: tuple[Projector, ...] = ()

    @property
    def projectors(self) -> tuple[Projector, ...]:
        """All of its projectors, one for each module that it feeds."""
        return (self.projector, *self.others)

    @property
    def projections(self) -> int:
        """Numbers in the matrices of all projectors, copies included."""
        return sum(projector.matrices * (1 + projector.copies) for projector in self.projectors)

    @property
    def parameters(self) -> int:
        """Parameters of encoder and projectors."""
        return self.encoder.parameters + sum(projector.parameters for projector in self.projectors)

    @property
    def computed(self) -> EncoderBranch:
        """The branch with what a run computes: an encoder without layers that nothing reads."""
        return self if self.features is None else replace(self, encoder=self.features)


@dataclass(frozen=True)
class DecoderHead:
    """A text decoder behind the language model: a projection, layers and an output layer.

    Attributes:
        inputs: width of the language model, whose rows it reads.
        positions: learned position embeddings; 0 for rotary positions.
    """

    name: str
    net: Transformer
    vocab: int
    inputs: int
    positions: int = 0

    @property
    def parameters(self) -> int:
        """All parameters."""
        return stack_parameters(self.net) + self.parameters_before + self.parameters_behind

    @property
    def parameters_before(self) -> int:
        """Of these, those before the layers: projection and positions."""
        return (self.inputs + self.positions) * self.net.hidden

    @property
    def parameters_behind(self) -> int:
        """Of these, those behind the layers: the last norm and the output layer."""
        return self.net.norm_parameters + self.vocab * self.net.hidden


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
