"""The images that decoders behind the language model make again, and their places in a text."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mimokit.architecture.tokens import ImageGeometry, image_geometry, tokens_per_item
from mimokit.config import MimoParallelismConfig, ModuleArchitecture
from mimokit.engine.data.batch import ITEMS, Batch, encoder_tensors, rows_per_sample
from mimokit.engine.models.patches import cut_patches

PIXELS = "pixel_values"
"""The images in the inputs of an encoder, and in the targets of a decoder."""


@dataclass(frozen=True)
class Reconstruction:
    """Which images a decoder makes, and how its loss counts.

    Attributes:
        decoder, encoder: names of the modules.
        before: encoders whose rows have the same placeholder and come first in a sample, and the
            rows of an item of each, where the batch does not say them.
        token: that placeholder.
        geometry: of an image; each of its patches is a row.
        weight: of the loss of a row, the mean squared error of its pixels.
    """

    decoder: str
    encoder: str
    before: tuple[tuple[str, int], ...]
    token: int
    geometry: ImageGeometry
    weight: float

    @classmethod
    def of(
        cls, config: MimoParallelismConfig, decoder: str, network: ModuleArchitecture
    ) -> Reconstruction:
        """Return those of a decoder behind the language model of a config."""
        encoder = config.reconstructed_by(network)
        assert encoder is not None, "a rule of the config"
        stated = network.reconstruction_loss_weight
        weight = 1.0 if stated is None else stated
        ends = config.ends_of(encoder)  # of several paths the direct one
        last = encoder if encoder in ends else next(iter(ends))
        together = _in_order(config, last)
        before = tuple(
            (name, tokens_per_item(config.get_architecture(name)))
            for name in together[: together.index(encoder)]
        )
        token, shape = config.special_token_ids[last], image_geometry(network)
        return cls(decoder, encoder, before, token, shape, weight)

    def items(self, batch: Batch) -> list[int]:
        """Return the images of every sample."""
        return _items(batch, self.encoder).tolist()

    def rows_before(self, batch: Batch) -> torch.Tensor:
        """Return how many rows of other encoders come first in every sample: [samples]."""
        inputs = batch.get("modality_inputs") or {}
        samples = len(batch["input_ids"])
        each = [rows_per_sample(inputs.get(name), samples, own) for name, own in self.before]
        return torch.stack([torch.zeros(samples, dtype=torch.int64), *each]).sum(0)

    def places(self, batch: Batch) -> torch.Tensor:
        """Return where the tokens of the images are: [samples, tokens], bool."""
        placed = batch["input_ids"] == self.token
        number = placed.cumsum(1)  # of a placeholder in its sample, from 1
        start = self.rows_before(batch)[:, None]
        stop = (start + _items(batch, self.encoder)[:, None] * self.geometry.patches).to(number)
        start = start.to(number)
        inside: torch.Tensor = placed & (number > start) & (number <= stop)
        return inside

    def pixels(self, batch: Batch) -> torch.Tensor:
        """Return the pixels of every row, [rows, channels * patch_size^2], images in order.

        They are those that the batch has as targets of the decoder, else those that the encoder
        reads.

        Raises:
            ValueError: there are none, or of another number or size than the images of the samples.
        """
        count, shape = sum(self.items(batch)), self.geometry
        sides = shape.height, shape.width
        wanted = [(count, shape.num_channels, *sides), (count, *sides)]
        if shape.num_channels > 1:
            wanted.pop()
        targets = (batch.get("targets") or {}).get(self.decoder)
        if targets is None:
            inputs = batch["modality_inputs"][self.encoder]
            targets = encoder_tensors(self.encoder, inputs)
        images = targets.get(PIXELS)
        if images is None or tuple(images.shape) not in wanted:
            has = "are missing" if images is None else f"have shape {tuple(images.shape)}"
            raise ValueError(
                f"The {PIXELS} that module {self.decoder!r} is to make {has} in the batch; give "
                f"targets of {wanted[0]}: images, channels, height, width."
            )
        return cut_patches(images, shape).flatten(0, 1)


def _in_order(config: MimoParallelismConfig, module: str) -> list[str]:
    """Return the encoders whose items a module makes rows of, as these follow each other."""
    feeders = config.feeders_of(module)
    return [one for name in feeders for one in _in_order(config, name)] or [module]


def _items(batch: Batch, encoder: str) -> torch.Tensor:
    """Return the items that every sample has of an encoder, on the host: [samples]."""
    inputs = (batch.get("modality_inputs") or {}).get(encoder)
    return (
        torch.zeros(len(batch["input_ids"]), dtype=torch.int64) if inputs is None else inputs[ITEMS]
    )
