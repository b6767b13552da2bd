"""Samples with inputs of several encoders, and their collation to a batch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch

from mimokit.architecture.tokens import (
    AudioGeometry,
    Geometry,
    ImageGeometry,
    TextGeometry,
    geometry_of,
)
from mimokit.config import ExperimentSections
from mimokit.engine.data.batch import ITEMS
from mimokit.engine.models.patches import (
    GRID,
    ITEM_TOKENS,
    cut_patches,
    three_axis_positions,
    token_grids,
)
from mimokit.engine.models.specs import encoder_kind
from mimokit.units import counted, listed

Presence = Callable[[str, int, int], bool]
"""(module, micro-batch, sample of the global micro-batch) -> whether there may be inputs."""


class MultimodalSample(TypedDict):
    """One sample.

    Attributes:
        items: module -> [items, …], pixels or log-mel frames; images of different sizes are in the
            top left corner of the largest.
        tokens: module -> [items], placeholders of every item.
        grids: module -> [items, 3], frames, rows and columns in patches, of images of different
            sizes.
        words: [words], token ids after all placeholders.
        learned: [words], 1.0 where a word is to be predicted.
    """

    items: dict[str, torch.Tensor]
    tokens: dict[str, torch.Tensor]
    grids: dict[str, torch.Tensor]
    words: torch.Tensor
    learned: torch.Tensor


@dataclass(frozen=True)
class EncoderInputs:
    """The inputs of one encoder.

    Attributes:
        max_items: items of a sample that fit: at least one.
        item_tokens: tokens of an item that fit on a path; fewer than its most where the item may be
            smaller.
    """

    module: str
    encoder: str
    placeholders: tuple[int, ...]
    geometry: Geometry
    max_items: int
    item_tokens: int

    @property
    def max_tokens(self) -> int:
        """The most placeholders of an item, on all paths together."""
        return len(self.placeholders) * self.item_tokens

    def no_items(self) -> torch.Tensor:
        """Return the inputs of no item: [0, …]."""
        shape = self.geometry
        if isinstance(shape, AudioGeometry):
            return torch.zeros(0, shape.mel_bins, shape.frames)
        if isinstance(shape, TextGeometry):
            return torch.zeros(0, shape.positions, dtype=torch.int64)
        assert isinstance(shape, ImageGeometry), "adapters read no items"
        return torch.zeros(0, shape.num_channels, shape.height, shape.width)

    @property
    def reads_words(self) -> bool:
        """Whether it is a text head: its one item in a sample are the words."""
        return isinstance(self.geometry, TextGeometry)

    @property
    def any_size(self) -> bool:
        """Whether it takes images of different sizes."""
        return isinstance(self.geometry, ImageGeometry) and self.geometry.any_size

    def token_grids(self, grids: torch.Tensor) -> torch.Tensor:
        """Return the grids of images of different sizes in tokens: [images, 3]."""
        assert isinstance(self.geometry, ImageGeometry)
        return token_grids(grids, self.geometry)


def encoder_inputs(config: ExperimentSections) -> tuple[EncoderInputs, ...]:
    """Return the inputs of the encoders of a config that read items, in its order.

    Raises:
        ValueError: if sizes do not divide each other, or not even one image of the one size that
            an encoder takes fits.
    """
    model = config.model
    inputs = []
    for name in model.input_module_names:
        architecture = model.get_architecture(name)
        geometry = geometry_of(architecture)
        room = config.tokens_of(name)
        of_one_size = isinstance(geometry, ImageGeometry) and not geometry.any_size
        if of_one_size and room < geometry.tokens:
            last = listed([repr(module) for module in model.ends_of(name)])
            raise ValueError(
                f"data.modality_seq_lengths (or image_seq_length) gives module {last} {room} "
                f"tokens, less than the {geometry.tokens} of one item; raise it."
            )
        kind, placeholders = encoder_kind(architecture).name, model.input_token_ids[name]
        items, tokens = max(1, room // geometry.tokens), min(room, geometry.tokens)
        inputs.append(EncoderInputs(name, kind, placeholders, geometry, items, tokens))
    return tuple(inputs)


def drawn_grids(
    encoder: EncoderInputs, images: int, generator: np.random.Generator
) -> torch.Tensor:
    """Draw sizes of images that fit: [images, 3], one frame, rows and columns of patches."""
    shape = encoder.geometry
    assert isinstance(shape, ImageGeometry)
    most = [shape.rows // shape.merge_size + 1, shape.columns // shape.merge_size + 1]
    sides = torch.tensor(generator.integers(1, most, size=(images, 2)))
    rows = sides[:, 0].clamp(max=encoder.item_tokens)
    columns = torch.minimum(sides[:, 1], encoder.item_tokens // rows)
    ones = torch.ones(images, dtype=torch.int64)
    return torch.stack([ones, rows * shape.merge_size, columns * shape.merge_size], dim=1)


class MultimodalCollate:
    """Makes sequences of samples: the placeholders of each encoder, words, padding.

    Rows that reach the language model on several paths have placeholders for each.
    The words of a text head become placeholders as well.
    """

    def __init__(
        self,
        encoders: Sequence[EncoderInputs],
        seq_length: int,
        padding: int,
        three_axes: bool = False,
    ) -> None:
        self.encoders = tuple(encoder for encoder in encoders if not encoder.reads_words)
        self.text_heads = tuple(encoder for encoder in encoders if encoder.reads_words)
        self.seq_length = seq_length
        self.padding = padding
        self.three_axes = three_axes

    def __call__(self, samples: list[MultimodalSample]) -> dict[str, object]:
        """Return a batch in the form described in `mimokit.engine.data.batch`.

        Raises:
            ValueError: if a sample is longer than the sequence.
        """
        tokens = torch.full((len(samples), self.seq_length + 1), self.padding)
        learned = torch.zeros(len(samples), self.seq_length + 1)
        for row, sample in enumerate(samples):
            self._lay_out(sample, tokens[row], learned[row])
        ids = tokens[:, :-1].clone()
        texts = {head.module: self._take_words(head, samples, ids) for head in self.text_heads}
        labels = tokens[:, 1:].clone()
        for token in (token for encoder in self.encoders for token in encoder.placeholders):
            labels[labels == token] = self.padding
        return {
            "input_ids": ids,
            "labels": labels,
            "loss_mask": learned[:, 1:].contiguous(),
            "position_ids": self._positions(tokens[:, :-1], samples),
            "modality_inputs": {
                **{encoder.module: _inputs(encoder, samples) for encoder in self.encoders},
                **texts,
            },
        }

    def _take_words(
        self, head: EncoderInputs, samples: Sequence[MultimodalSample], ids: torch.Tensor
    ) -> dict[str, object]:
        """Replace words in the ids by placeholders, in place; return the text head's inputs."""
        most = head.geometry.tokens
        texts = torch.full((len(samples), most), self.padding)
        counts = []
        for row, sample in enumerate(samples):
            begin = sum(len(places) for _, places in self._places(sample))
            words = sample["words"][: self.seq_length - begin]
            if len(words) > most:
                raise ValueError(
                    f"A sample has {counted(len(words), 'word')} but module {head.module!r} takes "
                    f"{most}; raise its seq_length."
                )
            texts[row, : len(words)] = words
            ids[row, begin : begin + len(words)] = head.placeholders[0]
            counts.append(len(words))
        tensors = {"words": texts, ITEM_TOKENS: torch.tensor(counts)}
        return {ITEMS: torch.ones(len(samples), dtype=torch.int64), head.encoder: tensors}

    def _positions(self, ids: torch.Tensor, samples: Sequence[MultimodalSample]) -> torch.Tensor:
        if not self.three_axes:
            return torch.arange(self.seq_length).expand(len(samples), -1).contiguous()
        sharing: dict[int, list[EncoderInputs]] = {}  # they feed one adapter
        for encoder in (*self.encoders, *self.text_heads):
            for token in encoder.placeholders:
                sharing.setdefault(token, []).append(encoder)
        grids = {
            token: torch.cat([e.token_grids(_grids(e, [s])) for s in samples for e in encoders])
            for token, encoders in sharing.items()
            if all(encoder.any_size for encoder in encoders)
        }
        return three_axis_positions(ids, grids)

    def _places(self, sample: MultimodalSample) -> Iterator[tuple[int, range]]:
        begin = 0
        for encoder in self.encoders:
            rows = int(sample["tokens"][encoder.module].sum())
            for token in encoder.placeholders:
                yield token, range(begin, begin + rows)
                begin += rows

    def _lay_out(
        self, sample: MultimodalSample, tokens: torch.Tensor, learned: torch.Tensor
    ) -> None:
        begin = 0
        for token, places in self._places(sample):
            tokens[places.start : places.stop] = token
            begin = places.stop
        end = begin + len(sample["words"])
        if end > len(tokens):
            raise ValueError(
                f"A sample needs {counted(end - 1, 'token')} but data.seq_length is "
                f"{self.seq_length}; raise it."
            )
        tokens[begin:end], learned[begin:end] = sample["words"], sample["learned"]


def _inputs(encoder: EncoderInputs, samples: Sequence[MultimodalSample]) -> dict[str, object]:
    values = torch.cat([sample["items"][encoder.module] for sample in samples])
    items = [len(sample["items"][encoder.module]) for sample in samples]
    tokens = torch.cat([sample["tokens"][encoder.module] for sample in samples])
    if isinstance(encoder.geometry, AudioGeometry):
        tensors = {"input_features": values, ITEM_TOKENS: tokens}
    elif encoder.any_size:
        assert isinstance(encoder.geometry, ImageGeometry)
        grids = _grids(encoder, samples)
        patches = _patches(values, grids, encoder.geometry)
        tensors = {"hidden_states": patches, GRID: grids, ITEM_TOKENS: tokens}
    else:
        tensors = {"pixel_values": values}
    return {ITEMS: torch.tensor(items), encoder.encoder: tensors}


def _grids(encoder: EncoderInputs, samples: Sequence[MultimodalSample]) -> torch.Tensor:
    return torch.cat([sample["grids"][encoder.module] for sample in samples])


def _patches(images: torch.Tensor, grids: torch.Tensor, geometry: ImageGeometry) -> torch.Tensor:
    """Return the concatenated patches of all images: [patches, features]."""
    parts = [images.new_zeros(0, geometry.features)]
    for image, (_, rows, columns) in zip(images, grids.tolist(), strict=True):
        cropped = image[:, : rows * geometry.patch_size, : columns * geometry.patch_size]
        parts.append(cut_patches(cropped[None], geometry)[0])
    return torch.cat(parts)
