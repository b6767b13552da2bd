"""Encoders, without their projectors: layers, with what stands before and behind them."""

from dataclasses import dataclass, field

from mimokit.architecture.row_head import RowHead
from mimokit.architecture.tensor_cut import Shape
from mimokit.architecture.tensor_rows import End, Tensors, norm, parameters_of, uncut
from mimokit.architecture.tokens import ImageGeometry
from mimokit.architecture.transformer import Transformer
from mimokit.config.architecture import ModuleArchitecture

_KERNEL = 3
"""Width of the convolutions in front of an audio encoder."""


@dataclass(frozen=True)
class Described:
    """A module with layers.

    Attributes:
        network: what a config states of it.
    """

    name: str
    net: Transformer
    network: ModuleArchitecture = field(compare=False, repr=False, kw_only=True)


class _Stack(Described):
    """What encoders have alike: layers, and a norm behind them.

    Attributes:
        positions: of the longest item, each of which becomes a token.
        table: learned or fixed position embeddings, of which the first are used; None: as many as
            positions; 0 for rotary positions.
        row_head: what makes one row of an item behind the layers, if it becomes one.
    """

    positions: int
    table: int | None
    row_head: RowHead | None = None

    @property
    def parameters(self) -> int:
        """All parameters, the position table included."""
        outside = (*self.in_front(""), *self.behind(""))
        return self.net.parameters + parameters_of(outside).total

    @property
    def work_before_layers(self) -> float:
        """Numbers in the matrices before the layers, per position; a look-up has none."""
        return 0.0

    @property
    def positions_of_a_row(self) -> int:
        """Positions of which its layers make a row for the projector."""
        return 1

    def in_front(self, prefix: str) -> Tensors:
        """Yield the tensors in front of the layers, whole on every rank."""
        for name, shape in self._shapes().items():
            yield uncut(f"{prefix}{name}", End.FIRST, *shape)
        if table := self.positions if self.table is None else self.table:
            yield uncut(f"{prefix}position_embedding", End.FIRST, table, self.net.hidden)

    def behind(self, prefix: str) -> Tensors:
        """Yield the tensors behind the layers: the last norm."""
        last = f"{prefix}decoder.final_layernorm"
        yield from norm(last, self.net.norm, self.net.hidden, End.LAST)

    def tokens(self) -> int:
        """Return the tokens of the longest item."""
        return self.positions

    def _shapes(self) -> dict[str, Shape]:
        raise NotImplementedError


@dataclass(frozen=True)
class VisionEncoder(_Stack):
    """A vision transformer, without its projector.

    Attributes:
        table: learned position embeddings; 0 for rotary positions.
        norms: norms outside the layers: 1 after them, 2 before and after.
        norm_after: of these, the one after the layers is there.
    """

    images: ImageGeometry
    table: int
    biased_patches: bool
    norms: int
    norm_after: bool

    @property
    def positions(self) -> int:  # type: ignore[override]
        """Of the largest image, with class token and registers."""
        return self.images.positions

    @property
    def work_before_layers(self) -> float:
        """Numbers in the patch embedding."""
        return float(self.images.features * self.net.hidden)

    @property
    def row_head(self) -> RowHead | None:  # type: ignore[override]
        """What makes one row of an image, if it becomes one."""
        return RowHead(self.net) if self.images.one_row else None

    @property
    def positions_of_a_row(self) -> int:
        """All of an image if it becomes one row, else the patches that are merged."""
        return self.positions if self.images.one_row else self.images.merge_size**2

    def in_front(self, prefix: str) -> Tensors:
        """Yield patch embedding, positions, class token, registers and a norm."""
        if self.norms > 1:
            yield from norm(f"{prefix}pre_layernorm", self.net.norm, self.net.hidden, End.FIRST)
        yield from super().in_front(prefix)

    def _shapes(self) -> dict[str, Shape]:
        width, images = self.net.hidden, self.images
        shapes: dict[str, Shape] = {"patch_embedding.weight": (width, images.features)}
        if self.biased_patches:
            shapes["patch_embedding.bias"] = (width,)
        if images.class_token:
            shapes["class_token"] = (1, width)
        if images.registers:
            shapes["registers"] = (images.registers, width)
        return shapes

    def behind(self, prefix: str) -> Tensors:
        """Yield the last norm, and the head that makes one row."""
        if self.norms and self.norm_after:
            yield from super().behind(prefix)
        if self.row_head is not None:
            yield from self.row_head.rows(prefix)

    def tokens(self) -> int:
        """Return the tokens that one image becomes in the language model."""
        return self.images.tokens


@dataclass(frozen=True)
class AudioEncoder(_Stack):
    """Two convolutions over a spectrogram and a stack of layers (Whisper's encoder).

    Attributes:
        positions: after the convolutions, which halve the time once.
    """

    mel_bins: int
    positions: int
    table: int | None

    @property
    def work_before_layers(self) -> float:
        """Numbers in the convolutions; the first has two outputs per position, see its stride."""
        return 3.0 * self.net.hidden * (2 * self.mel_bins + self.net.hidden)

    def _shapes(self) -> dict[str, Shape]:
        width, shapes = self.net.hidden, dict[str, Shape]()
        for name, inputs in (("frames", self.mel_bins), ("positions", width)):
            shapes |= {f"{name}.weight": (width, inputs, _KERNEL), f"{name}.bias": (width,)}
        return shapes


@dataclass(frozen=True)
class TextEncoder(_Stack):
    """A text head: embedding, positions and causal layers, without an output layer."""

    vocab: int
    positions: int
    table: int | None

    def _shapes(self) -> dict[str, Shape]:
        return {"word_embedding": (self.vocab, self.net.hidden)}


@dataclass(frozen=True)
class RowEncoder(_Stack):
    """An adapter: positions and layers over the rows of an item that another encoder has made."""

    positions: int
    table: int | None
    inputs: int = 0

    @property
    def work_before_layers(self) -> float:
        """Numbers in the matrix in front."""
        return float(self.inputs * self.net.hidden)

    def _shapes(self) -> dict[str, Shape]:
        return {"projection": (self.net.hidden, self.inputs)} if self.inputs else {}


Encoder = VisionEncoder | AudioEncoder | TextEncoder | RowEncoder

ENCODER_NAMES: dict[type[Encoder], str] = {
    VisionEncoder: "encoders.vit_encoder.",
    AudioEncoder: "encoders.whisper_encoder.",
    TextEncoder: "encoders.text_encoder.",
    RowEncoder: "encoders.row_encoder.",
}
"""Where Megatron's modality submodules have an encoder."""
