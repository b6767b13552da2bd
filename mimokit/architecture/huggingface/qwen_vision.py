"""Hugging Face configs of the vision towers of Qwen-VL, and of their patch mergers."""

import math
from typing import Any

from mimokit.architecture.huggingface.encoders import of_images, plain_layers
from mimokit.architecture.huggingface.fields import Fields
from mimokit.architecture.huggingface.functions import computed_fields
from mimokit.config.meaning import ROTARY_BASE, Normalization

Tower = tuple[dict[str, Any], int]
"""Its network with the patch merger as projector, and the width of what it gives."""


def qwen2_vision(fields: Fields) -> Tower:
    """Return Qwen2-VL's encoder, whose width is called embed_dim, and its patch merger."""
    ratio = fields.size_or("mlp_ratio", 4, least=1)
    layers = plain_layers(fields, fields.size("depth"), "embed_dim", ("num_heads",))
    layers["ffn_hidden_size"] = ratio * layers["hidden_size"]
    layers |= {**computed_fields(fields, "qwen2_vl_vision"), "patch_bias": False}
    return _encoder(fields, layers, "LayerNorm"), fields.size("hidden_size")


def qwen25_vision(fields: Fields) -> Tower:
    """Return Qwen2.5-VL's windowed encoder and its patch merger."""
    depth = fields.size("depth")
    layers = plain_layers(fields, depth, heads_names=("num_heads",))
    merge, cell = fields.size("spatial_merge_size"), fields.size("patch_size")
    window = fields.size("window_size")
    if window < cell * merge:
        fields.refuse(
            "window_size", f"it contradicts a token of {cell * merge} pixels, which is larger"
        )
    layers |= {
        "ffn_hidden_size": fields.size("intermediate_size"),
        "gated_linear_unit": True,
        "normalization": "RMSNorm",
        "window_size": (window // merge // cell * merge) ** 2 or None,
        "full_attention_layers": list(fields.numbered_of("fullatt_block_indexes", depth)),
        **computed_fields(fields, "qwen2_5_vl_vision"),
        "patch_bias": False,
    }
    return _encoder(fields, layers, "RMSNorm"), fields.size("out_hidden_size")


def qwen3_vision(fields: Fields) -> Tower:
    """Return Qwen3-VL's encoder, its patch merger and the mergers of its deepstack."""
    layers = plain_layers(fields, fields.size("depth"))
    layers["ffn_hidden_size"] = fields.size("intermediate_size")
    layers |= computed_fields(fields, "qwen3_vl_vision")
    table = fields.size("num_position_embeddings")
    if math.isqrt(table) ** 2 != table:
        fields.refuse("num_position_embeddings", "the table must be a square")
    layers |= {"position_embedding_type": "interpolated", "max_position_embeddings": table}
    encoder = _encoder(fields, layers, "LayerNorm", image_size=768)
    inner = fields.numbered_of("deepstack_visual_indexes", layers["num_layers"])
    encoder["projector"] |= {
        "deepstack_layers": list(inner) or None, "deepstack_normalization": "LayerNorm",
    }  # fmt: skip
    return encoder, fields.size("out_hidden_size")


def _encoder(
    fields: Fields, layers: dict[str, Any], norm: Normalization, *, image_size: int = 672
) -> dict[str, Any]:
    # The networks take images of any size: `image_size` is for files that state none.
    channels = "in_channels" if "in_channels" in fields else "in_chans"
    _check_rotary(fields)
    merge = fields.size("spatial_merge_size")
    images = of_images(
        fields.size_or("image_size", image_size, least=1),
        fields.size("patch_size"),
        merge,
        channels=fields.size_or(channels, 3, least=1),
    )
    return {
        "position_embedding_type": "rope",
        **layers,
        **images,
        "temporal_patch_size": fields.size("temporal_patch_size"),
        "outer_norms": 0,
        "projector": {"normalization": norm},
    }


def _check_rotary(fields: Fields) -> None:
    name = "rope_parameters"
    rotary = fields.section(name) if name in fields else Fields({})
    if rotary.number_or("rope_theta", ROTARY_BASE) != ROTARY_BASE:
        rotary.refuse("rope_theta", f"an encoder of images can run with {ROTARY_BASE:g}")
