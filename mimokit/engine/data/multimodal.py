"""Samples with inputs of several encoders, and how they are laid out as a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch

from mimokit.config import ExperimentConfig
from mimokit.engine.data.batch import ITEM_TOKENS, ITEMS
from mimokit.engine.models.modality import encoder_name
from mimokit.plan.tokens import AudioGeometry, ImageGeometry, audio_geometry, image_geometry

Presence = Callable[[str, int, int], bool]
"""(module, micro-batch, sample of the global micro-batch) -> whether there may be inputs."""


class MultimodalSample(TypedDict):
    """One sample.

    Attributes:
        items: module -> [items, …], pixels or log-mel frames.
        tokens: module -> [items], placeholders of every item.
        words: [words], token ids after all placeholders.
        learned: [words], 1.0 where a word is to be predicted.
    """

    items: dict[str, torch.Tensor]
    tokens: dict[str, torch.Tensor]
    words: torch.Tensor
    learned: torch.Tensor


@dataclass(frozen=True)
class EncoderInputs:
    """What one encoder reads.

    Attributes:
        module: its module.
        encoder: the name of the encoder in a batch.
        token: its placeholder.
        geometry: of an image or a recording.
        max_items: most items of a sample.
    """

    module: str
    encoder: str
    token: int
    geometry: ImageGeometry | AudioGeometry
    max_items: int

    def no_items(self) -> torch.Tensor:
        """Return the inputs of no item: [0, …]."""
        shape = self.geometry
        if isinstance(shape, AudioGeometry):
            return torch.zeros(0, shape.mel_bins, shape.frames)
        return torch.zeros(0, shape.num_channels, shape.height, shape.width)


def encoder_inputs(config: ExperimentConfig) -> tuple[EncoderInputs, ...]:
    """Return what the encoders of a config read, in its order.

    Raises:
        ValueError: if sizes do not divide each other, or not even one item of an encoder fits.
    """
    model, data = config.model, config.data
    found = []
    for name in model.encoder_module_names:
        architecture = model.get_architecture(name)
        audio = architecture.modality == "audio"
        geometry = audio_geometry(architecture) if audio else image_geometry(architecture)
        room = data.modality_seq_length(name)
        if room < geometry.tokens:
            raise ValueError(
                f"data.modality_seq_lengths (or image_seq_length) gives module {name!r} {room} "
                f"tokens, less than the {geometry.tokens} of one item; raise it."
            )
        found.append(
            EncoderInputs(
                name,
                encoder_name(architecture),
                model.special_token_ids[name],
                geometry,
                room // geometry.tokens,
            )
        )
    return tuple(found)


class MultimodalCollate:
    """Lays samples out as the placeholders of every encoder in turn, words, padding.

    Args:
        encoders: what each encoder reads.
        seq_length: tokens per sequence.
        padding: token id.
    """

    def __init__(self, encoders: Sequence[EncoderInputs], seq_length: int, padding: int) -> None:
        self.encoders = tuple(encoders)
        self.seq_length = seq_length
        self.padding = padding

    def __call__(self, samples: list[MultimodalSample]) -> dict[str, object]:
        """Return a batch in the form that `mimokit.engine.data.batch` describes.

        Raises:
            ValueError: if a sample is longer than the sequence.
        """
        tokens = torch.full((len(samples), self.seq_length + 1), self.padding)
        learned = torch.zeros(len(samples), self.seq_length + 1)
        for row, sample in enumerate(samples):
            self._lay_out(sample, tokens[row], learned[row])
        labels = tokens[:, 1:].clone()
        for encoder in self.encoders:
            labels[labels == encoder.token] = self.padding
        positions = torch.arange(self.seq_length).expand(len(samples), -1)
        return {
            "input_ids": tokens[:, :-1].contiguous(),
            "labels": labels,
            "loss_mask": learned[:, 1:].contiguous(),
            "position_ids": positions.contiguous(),
            "modality_inputs": {
                encoder.module: _inputs(encoder, samples) for encoder in self.encoders
            },
        }

    def _lay_out(
        self, sample: MultimodalSample, tokens: torch.Tensor, learned: torch.Tensor
    ) -> None:
        begin = 0
        for encoder in self.encoders:
            end = begin + int(sample["tokens"][encoder.module].sum())
            tokens[begin:end] = encoder.token
            begin = end
        end = begin + len(sample["words"])
        if end > len(tokens):
            raise ValueError(
                f"A sample needs {end - 1} tokens but data.seq_length is {self.seq_length}; "
                "raise it."
            )
        tokens[begin:end], learned[begin:end] = sample["words"], sample["learned"]


def _inputs(encoder: EncoderInputs, samples: Sequence[MultimodalSample]) -> dict[str, object]:
    values = torch.cat([sample["items"][encoder.module] for sample in samples])
    items = [len(sample["items"][encoder.module]) for sample in samples]
    if isinstance(encoder.geometry, AudioGeometry):
        tokens = torch.cat([sample["tokens"][encoder.module] for sample in samples])
        tensors = {"input_features": values, ITEM_TOKENS: tokens}
    else:
        tensors = {"pixel_values": values}
    return {ITEMS: torch.tensor(items), encoder.encoder: tensors}
