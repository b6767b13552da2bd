"""The vision encoder: patches and positions into Megatron's `TransformerBlock`, and a projector."""

from __future__ import annotations

from typing import Any

import torch

from mimokit.architecture.tokens import ImageGeometry, image_geometry
from mimokit.config import ModuleArchitecture
from mimokit.engine.megatron import (
    AttnMaskType,
    ModuleSpec,
    ProcessGroupCollection,
    TransformerConfig,
    VisionModalitySubmodules,
)
from mimokit.engine.models.encoder import Encoder, EncoderKind, OuterNorms
from mimokit.engine.models.patches import cut_patches
from mimokit.engine.models.transformer import StagePart


class VisionTransformer(Encoder):
    """A ViT, optionally with a class token (CLIP, DINO) and registers (DINOv2).

    Class token and registers come before the patches and are dropped at the end, except a class
    token that is kept. The class token has a position embedding, registers have none.

    Args:
        geometry: how an image is cut into patches.
        class_token: put one before the patches; other extra positions are registers.
        part: the part of it on this pipeline stage.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_spec: ModuleSpec,
        geometry: ImageGeometry,
        class_token: bool,
        patch_bias: bool,
        outer_norms: OuterNorms,
        part: StagePart,
        pg_collection: ProcessGroupCollection,
    ) -> None:
        super().__init__(config, part)
        self.geometry = geometry
        if part.first:
            self.patch_embedding = torch.nn.Linear(
                geometry.num_channels * geometry.patch_size**2, config.hidden_size, bias=patch_bias
            )
            self.position_embedding = self._vectors(geometry.patches + class_token)
            if class_token:
                self.class_token = self._vectors(1)
            if geometry.extra_positions > class_token:
                self.registers = self._vectors(geometry.extra_positions - class_token)
        self._build_layers(layer_spec, outer_norms, pg_collection)

    def embed(self, pixel_values: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Images to [positions, images, hidden]; on the first stage.

        Args:
            pixel_values: [images, channels, height, width], or without the channel dimension.

        Raises:
            ValueError: if the images have a different size.
        """
        shape = self.geometry
        expected = (shape.num_channels, shape.height, shape.width)
        given = tuple(pixel_values.shape[1:])
        if given != expected and (1, *given) != expected:
            raise ValueError(
                f"The encoder takes images of {expected} (channels, height, width), not of {given}."
            )
        patches = self.patch_embedding(cut_patches(pixel_values, shape))
        return self._with_extra(patches + self.position_embedding[-shape.patches :])

    def no_items(self) -> dict[str, torch.Tensor]:
        """Return the inputs of 0 images."""
        shape = self.geometry
        size = (0, shape.num_channels, shape.height, shape.width)
        return {"pixel_values": self.position_embedding.new_zeros(size)}

    def _with_extra(self, patches: torch.Tensor) -> torch.Tensor:
        """Put class token and registers before patches: [images, patches, hidden] transposed."""
        parts = [patches]
        if hasattr(self, "registers"):
            parts.insert(0, self.registers.expand(len(patches), -1, -1))
        if hasattr(self, "class_token"):
            first = self.class_token + self.position_embedding[:1]
            parts.insert(0, first.expand(len(patches), -1, -1))
        return torch.cat(parts, dim=1).transpose(0, 1).contiguous()

    def finish(self, hidden: torch.Tensor, sizes: torch.Tensor | None = None) -> torch.Tensor:
        """[positions, images, hidden] to [images * tokens, merge_size^2 * hidden].

        Raises:
            ValueError: if the number of tokens of an image in the batch differs.
        """
        if sizes is not None and bool((sizes != self.geometry.tokens).any()):
            raise ValueError(
                f"The batch says that images become {sizes.tolist()} tokens, but the encoder makes "
                f"{self.geometry.tokens} of each."
            )
        patches = hidden[self.geometry.extra_positions :]
        if self.geometry.keeps_first:
            patches = torch.cat([hidden[:1], patches])
        patches = patches.transpose(0, 1).contiguous()
        return patches.reshape(-1, self.geometry.merge_size**2 * hidden.shape[-1])


def _parameters(architecture: ModuleArchitecture) -> dict[str, Any]:
    return {
        "geometry": image_geometry(architecture),
        "class_token": architecture.class_token,
        "patch_bias": architecture.patch_bias is not False,
    }


VISION = EncoderKind(
    name="vit_encoder",
    encoder=VisionTransformer,
    submodules=VisionModalitySubmodules,
    mask_type=AttnMaskType.no_mask,
    parameters=_parameters,
    merged=lambda architecture: architecture.merge_size**2,
)
