"""The images and recordings that decoders make again, and their places in a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mimokit.architecture.tokens import (
    AudioGeometry,
    ImageGeometry,
    audio_geometry,
    image_geometry,
    tokens_per_item,
)
from mimokit.config import ModelSection, ModuleArchitecture
from mimokit.engine.data.batch import ITEMS, Batch, encoder_tensors, item_tokens, rows_per_sample
from mimokit.engine.models.patches import cut_patches, merged_patches

PIXELS = "pixel_values"
"""The images in the inputs of an encoder, and in the targets of a decoder."""

PATCHES = "hidden_states"
"""Their patches where images may be of any size."""

FEATURES = "input_features"
"""The frames of recordings, likewise."""


@dataclass(frozen=True)
class Reconstruction:
    """Which images or recordings a decoder makes, and how its loss counts.

    Attributes:
        before: encoder whose rows have the same placeholder and come first in a sample -> rows of
            an item, where the batch does not say them.
        geometry: of the largest item; each of its tokens is a row: a patch of an image, or frames
            of a recording.
        any_size: how the encoder cuts images of any size; None for others and for sound.
    """

    decoder: str
    encoder: str
    before: Mapping[str, int]
    token: int
    geometry: ImageGeometry | AudioGeometry
    any_size: ImageGeometry | None
    weight: float

    @classmethod
    def of(cls, config: ModelSection, decoder: str, network: ModuleArchitecture) -> Reconstruction:
        """Return those of a decoder behind the language model of a config."""
        encoder = config.reconstructed_by(network)
        assert encoder is not None, "a rule of the config"
        stated = network.reconstruction_loss_weight
        weight = 1.0 if stated is None else stated
        ends = config.ends_of(encoder)  # of several paths the direct one
        last = encoder if encoder in ends else next(iter(ends))
        together = _in_order(config, last)
        before = {
            name: tokens_per_item(config.get_architecture(name))
            for name in together[: together.index(encoder)]
        }
        token, reading = config.special_token_ids[last], config.get_architecture(encoder)
        sound = network.modality == "audio"
        shape = audio_geometry(network) if sound else image_geometry(network)
        any_size = image_geometry(reading) if reading.any_image_size else None
        return cls(decoder, encoder, before, token, shape, any_size, weight)

    def items(self, batch: Batch) -> list[int]:
        """Return the items of every sample."""
        return _items(batch, self.encoder).tolist()

    def rows_of_items(self, batch: Batch) -> torch.Tensor:
        """Return the rows of every item, [items], of a batch that has some."""
        inputs = batch["modality_inputs"][self.encoder]
        tokens = item_tokens(inputs)
        if tokens is None:
            return torch.full((sum(self.items(batch)),), self.geometry.tokens)
        return tokens

    def rows_before(self, batch: Batch) -> torch.Tensor:
        """Return how many rows of other encoders come first in every sample: [samples]."""
        inputs = batch.get("modality_inputs") or {}
        samples, before = len(batch["input_ids"]), self.before
        each = [rows_per_sample(inputs.get(name), samples, own) for name, own in before.items()]
        return torch.stack([torch.zeros(samples, dtype=torch.int64), *each]).sum(0)

    def places(self, batch: Batch) -> torch.Tensor:
        """Return where the tokens of the items are: [samples, tokens], bool."""
        placed = batch["input_ids"] == self.token
        number = placed.cumsum(1)  # of a placeholder in its sample, from 1
        start = self.rows_before(batch)[:, None]
        inputs = (batch.get("modality_inputs") or {}).get(self.encoder)
        own = rows_per_sample(inputs, len(placed), self.geometry.tokens)
        stop = (start + own[:, None]).to(number)
        start = start.to(number)
        inside: torch.Tensor = placed & (number > start) & (number <= stop)
        return inside

    def targets(self, batch: Batch) -> torch.Tensor:
        """Return the numbers of every row, items in order: [rows, features].

        Those of an image are its pixels, [channels * patch_size^2], of patches of several frames
        those of the first one; those of a recording the frames of a token, [mel bands * frames],
        with the silence behind the end of the recording. They are those that the batch has as
        targets of the decoder, else those that the encoder reads.

        Raises:
            ValueError: there are none, or of another number or size than the items of the samples.
        """
        targets = (batch.get("targets") or {}).get(self.decoder)
        if targets is None:
            inputs = batch["modality_inputs"][self.encoder]
            targets = encoder_tensors(self.encoder, inputs)
        if isinstance(self.geometry, AudioGeometry):
            return self._frames(batch, targets, self.geometry)
        if self.any_size is not None:
            return self._merged(batch, targets, self.any_size)
        return self._cut(batch, targets, self.geometry)

    def _frames(
        self, batch: Batch, targets: Mapping[str, torch.Tensor], shape: AudioGeometry
    ) -> torch.Tensor:
        recordings, each = targets.get(FEATURES), self.rows_of_items(batch)
        wanted = (len(each), shape.mel_bins, shape.frames)
        if recordings is None or tuple(recordings.shape) != wanted:
            raise self._wrong(FEATURES, recordings, wanted, "recordings, mel bands, frames")
        bands, frames = shape.mel_bins, shape.frames_per_token
        cut = recordings.reshape(len(each), bands, shape.tokens, frames)
        tokens = cut.transpose(1, 2).flatten(2)
        places = torch.arange(shape.tokens, device=tokens.device)
        return tokens[places < each.to(tokens.device)[:, None]]

    def _merged(
        self, batch: Batch, targets: Mapping[str, torch.Tensor], read: ImageGeometry
    ) -> torch.Tensor:
        rows = int(self.rows_of_items(batch).sum())
        wanted = (rows * read.merge_size**2, read.features)
        patches = targets.get(PATCHES)
        if patches is None or tuple(patches.shape) != wanted:
            raise self._wrong(PATCHES, patches, wanted, "patches of all images, numbers of each")
        return merged_patches(patches, read)

    def _cut(
        self, batch: Batch, targets: Mapping[str, torch.Tensor], shape: ImageGeometry
    ) -> torch.Tensor:
        count = sum(self.items(batch))
        sides = shape.height, shape.width
        wanted = [(count, shape.num_channels, *sides), (count, *sides)]
        if shape.num_channels > 1:
            wanted.pop()
        images = targets.get(PIXELS)
        if images is None or tuple(images.shape) not in wanted:
            raise self._wrong(PIXELS, images, wanted[0], "images, channels, height, width")
        return cut_patches(images, shape).flatten(0, 1)

    def _wrong(
        self, name: str, given: torch.Tensor | None, wanted: tuple[int, ...], axes: str
    ) -> ValueError:
        has = "are missing" if given is None else f"have shape {tuple(given.shape)}"
        return ValueError(
            f"The {name} that module {self.decoder!r} is to make {has} in the batch; give targets "
            f"of {wanted}: {axes}."
        )


def _in_order(config: ModelSection, module: str) -> list[str]:
    feeders = config.feeders_of(module)
    return [encoder for name in feeders for encoder in _in_order(config, name)] or [module]


def _items(batch: Batch, encoder: str) -> torch.Tensor:
    """Return the items that every sample has of an encoder, on the host: [samples]."""
    inputs = (batch.get("modality_inputs") or {}).get(encoder)
    return (
        torch.zeros(len(batch["input_ids"]), dtype=torch.int64) if inputs is None else inputs[ITEMS]
    )
