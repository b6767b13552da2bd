"""The vision encoder: patches and positions into Megatron's `TransformerBlock`, and a projector."""

from __future__ import annotations

import torch

from mimokit.config import ModuleArchitecture, ModuleParallelismConfig
from mimokit.engine.megatron import (
    AttnMaskType,
    ModuleSpec,
    ProcessGroupCollection,
    TransformerConfig,
    VisionModalitySubmodules,
)
from mimokit.engine.models.encoder import (
    Encoder,
    encoder_layer_spec,
    projector_spec,
    submodule_spec,
)
from mimokit.engine.models.transformer import WHOLE, StagePart, transformer_config
from mimokit.plan.tokens import ImageGeometry, image_geometry

ENCODER_NAME = "vit_encoder"


class VisionTransformer(Encoder):
    """A ViT, with a class token (CLIP, DINO) and registers (DINOv2) if asked for.

    Class token and registers come before the patches and are dropped at the end. The class token
    has a position embedding, registers have none.

    Args:
        config: Megatron's transformer configuration.
        layer_spec: the spec of one layer.
        geometry: how an image is cut into patches.
        class_token: put one before the patches; what else is before them are registers.
        part: what of it this pipeline stage holds.
        pg_collection: process groups of the module.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_spec: ModuleSpec,
        geometry: ImageGeometry,
        class_token: bool,
        part: StagePart,
        pg_collection: ProcessGroupCollection,
    ) -> None:
        super().__init__(config, part)
        self.geometry = geometry
        if part.first:
            self.patch_embedding = torch.nn.Linear(
                geometry.num_channels * geometry.patch_size**2, config.hidden_size
            )
            self.position_embedding = self._vectors(geometry.patches + class_token)
            if class_token:
                self.class_token = self._vectors(1)
            if geometry.extra_positions > class_token:
                self.registers = self._vectors(geometry.extra_positions - class_token)
        self._build_layers(layer_spec, pg_collection)

    def _vectors(self, number: int) -> torch.nn.Parameter:
        vectors = torch.nn.Parameter(torch.empty(number, self.config.hidden_size))
        self.config.init_method(vectors)
        return vectors

    def embed(self, pixel_values: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Images to [positions, images, hidden]; on the first stage.

        Args:
            pixel_values: [images, channels, height, width], or without the channel dimension.

        Raises:
            ValueError: if the images have another size.
        """
        shape = self.geometry
        expected = (shape.num_channels, shape.height, shape.width)
        given = tuple(pixel_values.shape[1:])
        if given != expected and (1, *given) != expected:
            raise ValueError(
                f"The encoder takes images of {expected} (channels, height, width), not of {given}."
            )
        patches = self.patch_embedding(self._patches(pixel_values))
        positions = self.position_embedding
        parts = [patches + positions[-self.geometry.patches :]]
        if hasattr(self, "registers"):
            parts.insert(0, self.registers.expand(len(patches), -1, -1))
        if hasattr(self, "class_token"):
            parts.insert(0, (self.class_token + positions[:1]).expand(len(patches), -1, -1))
        return torch.cat(parts, dim=1).transpose(0, 1).contiguous()

    def finish(
        self, hidden: torch.Tensor, tokens_per_item: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[positions, images, hidden] to [images * tokens, merge_size^2 * hidden].

        Raises:
            ValueError: if the batch says that an image becomes another number of tokens.
        """
        if tokens_per_item is not None and bool((tokens_per_item != self.geometry.tokens).any()):
            raise ValueError(
                f"The batch says that images become {tokens_per_item.tolist()} tokens, but the "
                f"encoder makes {self.geometry.tokens} of each."
            )
        patches = hidden[self.geometry.extra_positions :].transpose(0, 1).contiguous()
        return patches.reshape(-1, self.geometry.merge_size**2 * hidden.shape[-1])

    def _patches(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Cut [n, (c), h, w] into [n, patches, c * patch^2]; a merged square lies in a row."""
        shape, images = self.geometry, len(pixel_values)
        merge, patch = shape.merge_size, shape.patch_size
        rows, columns = shape.rows // merge, shape.columns // merge
        cut = pixel_values.reshape(
            images, shape.num_channels, rows, merge, patch, columns, merge, patch
        )
        ordered = cut.permute(0, 2, 5, 3, 6, 1, 4, 7)
        return ordered.reshape(images, shape.patches, shape.num_channels * patch**2)


def vision_submodule_spec(
    architecture: ModuleArchitecture,
    language: ModuleArchitecture,
    parallelism: ModuleParallelismConfig,
    initial_seed: int = 0,
    part: StagePart = WHOLE,
) -> ModuleSpec:
    """Return the spec of encoder and projector; the provider injects the process groups.

    The projector is on the last stage.

    Raises:
        ValueError: if image, patch and merge size do not divide each other.
    """
    encoder = ModuleSpec(
        module=VisionTransformer,
        params={
            "config": transformer_config(architecture, parallelism),
            "layer_spec": encoder_layer_spec(initial_seed, AttnMaskType.no_mask),
            "geometry": image_geometry(architecture),
            "class_token": architecture.class_token,
            "part": part,
            "pg_collection": None,
        },
    )
    features = architecture.hidden_size * architecture.merge_size**2
    projector = projector_spec(features, language, parallelism) if part.last else None
    return submodule_spec(VisionModalitySubmodules, ENCODER_NAME, encoder, projector)
