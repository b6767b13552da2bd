"""The provider of the first source document, and data for it: specs of Megatron's own classes."""

from typing import Any

import torch

from mimokit.config import (
    DataConfig,
    DeploymentMode,
    MimoParallelismConfig,
    ModuleParallelismConfig,
)

IMAGE, WORDS, TOKENS, ROWS, WIDTH, FEATURES = 15, 15, 12, 3, 32, 24
"""Placeholder, vocabulary, tokens per sample, tokens per image, widths of language and encoder."""


def layout_of(
    mode: DeploymentMode, encoder: tuple[int, int], language: tuple[int, int]
) -> MimoParallelismConfig:
    """Return a layout without networks; sizes are (tensor_parallel, data_parallel)."""
    offset = encoder[0] * encoder[1] if mode == "heterogeneous" else 0
    return MimoParallelismConfig(
        llm_module_name="language_module",
        deployment_mode=mode,
        module_parallelisms={
            name: ModuleParallelismConfig(
                tensor_parallel=tensor, data_parallel=data, rank_offset=at
            )
            for name, (tensor, data), at in (
                ("images", encoder, 0),
                ("language_module", language, offset),
            )
        },
        special_token_ids={"images": IMAGE},
    ).finalize()


def data_of(layout: MimoParallelismConfig, count: int = 2) -> DataConfig:
    """Return batches of four samples."""
    replicas = layout.get_parallelism("language_module").data_parallel or 1
    return DataConfig(
        base_batch_size=4 // replicas,
        num_microbatches=count,
        seq_length=TOKENS,
        image_seq_length=ROWS,
        vocab_size=WORDS,
        image_special_token_id=IMAGE,
        dataset_size=64,
    )


def provider_of(layout: MimoParallelismConfig) -> Any:
    """Return the provider, as the document writes it."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.vision.vit_layer_specs import get_vit_layer_with_local_spec
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.mlp import MLPSubmodules

    from mimokit import engine
    from mimokit.engine.megatron import TransformerConfig

    def config(width: int) -> TransformerConfig:
        return TransformerConfig(
            num_layers=2, hidden_size=width, num_attention_heads=4, hidden_dropout=0.0,
            attention_dropout=0.0, use_cpu_initialization=True, masked_softmax_fusion=False,
            bias_dropout_fusion=False, bias_activation_fusion=False,
        )  # fmt: skip

    encoder = engine.ModuleSpec(
        module=engine.TransformerBlock,
        params={
            "config": config(FEATURES),
            "spec": get_vit_layer_with_local_spec(),
            "pg_collection": None,
        },
    )
    projection = engine.ModuleSpec(
        module=engine.MultimodalProjector,
        params={
            "config": config(WIDTH),
            "submodules": MLPSubmodules(
                linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear
            ),
            "projector_type": "mlp",
            "input_size": FEATURES,
            "tp_group": None,
        },
    )
    return engine.MimoModelProvider(
        language_model_spec=engine.ModuleSpec(
            module=engine.GPTModel,
            params={
                "config": config(WIDTH),
                "transformer_layer_spec": get_gpt_layer_local_spec(),
                "vocab_size": 16,
                "max_sequence_length": TOKENS,
                "pre_process": True,
                "post_process": True,
                "pg_collection": None,
            },
        ),
        modality_submodules_spec={
            "images": engine.ModuleSpec(
                module=engine.VisionModalitySubmodules,
                submodules={
                    "encoders": {"clip_encoder": encoder},
                    "input_projections": [projection],
                },
            )
        },
        special_token_ids={"images": IMAGE},
        mimo_parallelism_config=layout,
        tokens_per_item={"images": ROWS},
    )


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """An image of ROWS feature vectors, then words that continue it."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        draws = torch.Generator().manual_seed(index)
        start = int(torch.randint(0, WORDS, (), generator=draws))
        words = (start + torch.arange(TOKENS - ROWS + 1)) % WORDS
        features = torch.randn(ROWS, FEATURES, generator=draws) + start / WORDS
        return {"words": words, "features": features}


def collate(samples: list[dict[str, torch.Tensor]]) -> dict[str, Any]:
    """Return a batch whose hidden states are [tokens, samples, features], as Megatron has them."""
    words = torch.stack([one["words"] for one in samples])
    images = torch.full((len(samples), ROWS), IMAGE)
    tokens = torch.cat([images, words], dim=1)
    labels = tokens[:, 1:].clone()
    loss_mask = torch.ones(labels.shape)
    loss_mask[:, : ROWS - 1] = 0.0
    labels[:, : ROWS - 1] = 0
    features = torch.stack([one["features"] for one in samples], dim=1)
    return {
        "input_ids": tokens[:, :TOKENS],
        "labels": labels[:, :TOKENS],
        "loss_mask": loss_mask[:, :TOKENS],
        "position_ids": torch.arange(TOKENS).repeat(len(samples), 1),
        "modality_inputs": {
            "images": {
                "items_per_sample": torch.ones(len(samples), dtype=torch.int64),
                "clip_encoder": {"hidden_states": features},
            }
        },
    }


def source(config: Any) -> Any:
    """Return the data, as `verify` takes it."""
    from mimokit.engine import TrainingData

    return TrainingData("own", Samples(), collate)
