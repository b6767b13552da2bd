"""An image decoder: layers over the tokens of an image behind the language model, and its pixels.

It takes what the language model has made of the placeholders of an image. All of these rows attend
to each other, as in an adapter, and a matrix makes each of them the pixels of its patch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from mimokit.architecture.tokens import ImageGeometry, image_geometry
from mimokit.config import MimoParallelismConfig, ModuleArchitecture, ProjectorArchitecture
from mimokit.engine.data.batch import ITEMS, Batch, encoder_tensors
from mimokit.engine.megatron import ModuleSpec
from mimokit.engine.models.adapter import ROWS
from mimokit.engine.models.patches import cut_patches
from mimokit.engine.models.transformer import ModuleBuild

PIXELS = "pixel_values"
"""The images in the inputs of an encoder, and in the targets of a decoder."""


def image_decoder_spec(build: ModuleBuild) -> ModuleSpec:
    """Return the spec of a decoder; the provider injects groups and stage.

    Raises:
        ValueError: if its sizes do not divide each other.
    """
    network, language = build.architecture, build.joined
    head = ProjectorArchitecture(hidden_sizes=[])
    layers = network.over_rows.model_copy(update={"projector": head})
    pixels = language.model_copy(update={"hidden_size": image_geometry(network).features})
    spec = ROWS.spec(replace(build, architecture=layers, joined=pixels))
    spec.submodules["encoders"][ROWS.name].params["inputs"] = language.hidden_size
    return spec


@dataclass(frozen=True)
class Reconstruction:
    """Which images a decoder makes, and how its loss counts.

    Attributes:
        decoder, encoder: names of the modules.
        token: the placeholder of an image's tokens.
        geometry: of an image; each of its patches is a row.
        weight: of the loss of a row, the mean squared error of its pixels.
    """

    decoder: str
    encoder: str
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
        token = config.input_token_ids[encoder]
        return cls(decoder, encoder, token, image_geometry(network), weight)

    def items(self, batch: Batch) -> list[int]:
        """Return the images of every sample."""
        inputs = (batch.get("modality_inputs") or {}).get(self.encoder)
        if inputs is None:
            return [0] * len(batch["input_ids"])
        items: list[int] = inputs[ITEMS].tolist()
        return items

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


def squared_errors(made: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """Return the sum over rows of the mean squared error of their pixels, in fp32."""
    return (made.float() - pixels.float()).square().mean(1).sum()
