"""The vision encoder: patches and positions into Megatron's `TransformerBlock`, and a projector."""

from __future__ import annotations

import copy

import torch

from mimokit.config import ModuleArchitecture, ModuleParallelismConfig
from mimokit.engine.megatron import (
    AttnMaskType,
    ColumnParallelLinear,
    MegatronModule,
    MLPSubmodules,
    ModuleSpec,
    MultimodalProjector,
    ProcessGroupCollection,
    RowParallelLinear,
    TransformerBlock,
    TransformerConfig,
    VisionModalitySubmodules,
    get_gpt_layer_local_spec,
)
from mimokit.engine.models.layer import seeded
from mimokit.engine.models.transformer import WHOLE, StagePart, transformer_config
from mimokit.plan.tokens import ImageGeometry, image_geometry

ENCODER_NAME = "vit_encoder"


class VisionTransformer(MegatronModule):  # type: ignore[misc]
    """A ViT: every image attends to itself alone, whatever images are packed beside it.

    Args:
        config: Megatron's transformer configuration.
        layer_spec: the spec of one layer.
        geometry: how an image is cut into patches.
        part: what of it this pipeline stage holds.
        pg_collection: process groups of the module.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_spec: ModuleSpec,
        geometry: ImageGeometry,
        part: StagePart,
        pg_collection: ProcessGroupCollection,
    ) -> None:
        super().__init__(config=config)
        self.geometry = geometry
        self.part = part
        if part.first:
            self.patch_embedding = torch.nn.Linear(
                geometry.num_channels * geometry.patch_size**2, config.hidden_size
            )
            self.position_embedding = torch.nn.Parameter(
                torch.empty(geometry.patches, config.hidden_size)
            )
            config.init_method(self.position_embedding)
        self.decoder = TransformerBlock(
            config=config,
            spec=layer_spec,
            pre_process=part.first,
            post_process=part.last,
            pg_collection=pg_collection,
        )

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Encode images.

        Args:
            pixel_values: [images, channels, height, width], or without the channel dimension.

        Returns:
            [images * tokens per image, merge_size^2 * hidden], images in order.
        """
        return self.finish(self.run_layers(self.embed(pixel_values)))

    def embed(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Images to [patches, images, hidden]; on the first stage."""
        patches = self._patches(pixel_values)
        hidden: torch.Tensor = self.patch_embedding(patches) + self.position_embedding
        return hidden.transpose(0, 1).contiguous()

    def run_layers(self, hidden: torch.Tensor) -> torch.Tensor:
        """[patches, images, hidden] through the layers that this stage holds."""
        if not self.part.first:
            self.decoder.set_input_tensor(hidden)
        output: torch.Tensor = self.decoder(hidden, attention_mask=None)
        return output

    def finish(self, hidden: torch.Tensor) -> torch.Tensor:
        """[patches, images, hidden] to tokens; on the last stage."""
        return self._merge(hidden.transpose(0, 1).contiguous())

    def _patches(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Cut [n, (c), h, w] into [n, patches, c * patch^2]; a merged square lies in a row."""
        shape = self.geometry
        merge, patch = shape.merge_size, shape.patch_size
        rows, columns = shape.rows // merge, shape.columns // merge
        cut = pixel_values.reshape(
            -1, shape.num_channels, rows, merge, patch, columns, merge, patch
        )
        ordered = cut.permute(0, 2, 5, 3, 6, 1, 4, 7)
        return ordered.reshape(cut.shape[0], shape.patches, -1)

    def _merge(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, patches, h] -> [n * patches / merge^2, merge^2 * h]."""
        return hidden.reshape(-1, self.geometry.merge_size**2 * hidden.shape[-1])


def _encoder_layer_spec() -> ModuleSpec:
    """Megatron's local layer without a mask.

    (`get_vit_layer_with_local_spec` of 0.16.1 is causal: its patches do not see those after them.)
    """
    spec = copy.deepcopy(get_gpt_layer_local_spec())
    spec.submodules.self_attention.params = {"attn_mask_type": AttnMaskType.no_mask}
    return spec


def _encoder_spec(
    architecture: ModuleArchitecture,
    parallelism: ModuleParallelismConfig,
    initial_seed: int,
    part: StagePart,
) -> ModuleSpec:
    return ModuleSpec(
        module=VisionTransformer,
        params={
            "config": transformer_config(architecture, parallelism),
            "layer_spec": seeded(_encoder_layer_spec(), initial_seed),
            "geometry": image_geometry(architecture),
            "part": part,
            "pg_collection": None,
        },
    )


def _projector_spec(
    architecture: ModuleArchitecture,
    language: ModuleArchitecture,
    parallelism: ModuleParallelismConfig,
) -> ModuleSpec:
    """The projector runs with the parallelism of the encoder and ends in the language width."""
    return ModuleSpec(
        module=MultimodalProjector,
        params={
            "config": transformer_config(
                language, parallelism.model_copy(update={"pipeline_parallel": 1})
            ),
            "submodules": MLPSubmodules(
                linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear
            ),
            "projector_type": "mlp",
            "input_size": architecture.hidden_size * architecture.merge_size**2,
            "tp_group": None,
        },
    )


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
    return ModuleSpec(
        module=VisionModalitySubmodules,
        params={},
        submodules={
            "encoders": {
                ENCODER_NAME: _encoder_spec(architecture, parallelism, initial_seed, part)
            },
            "input_projections": (
                [_projector_spec(architecture, language, parallelism)] if part.last else []
            ),
        },
    )
