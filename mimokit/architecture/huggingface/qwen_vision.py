"""Hugging Face configs of the vision towers of Qwen-VL, and of their patch mergers."""

import math
from dataclasses import replace

from mimokit.architecture.encoders import VisionEncoder
from mimokit.architecture.huggingface.encoders import plain_net
from mimokit.architecture.huggingface.fields import Fields
from mimokit.architecture.huggingface.functions import functions_of_section
from mimokit.architecture.huggingface.language import activation_of
from mimokit.architecture.modules import Projector
from mimokit.architecture.transformer import Transformer
from mimokit.config.meaning import ROTARY_BASE, Normalization

Tower = tuple[VisionEncoder, Projector]


def qwen2_vision(fields: Fields, name: str) -> Tower:
    """Return Qwen2-VL's encoder, whose width is called embed_dim, and its patch merger."""
    width, ratio = "embed_dim", fields.size_or("mlp_ratio", 4, least=1)
    net = plain_net(fields, fields.size("depth"), width, ("num_heads",), width)
    net = _as_stated(fields, replace(net, ffn=ratio * net.hidden), "qwen2_vl_vision")
    encoder = _encoder(fields, name, net, patch_bias=False)
    return encoder, _merger(encoder, "LayerNorm", fields.size("hidden_size"))


def qwen25_vision(fields: Fields, name: str) -> Tower:
    """Return Qwen2.5-VL's windowed encoder and its patch merger."""
    hidden, layers = fields.size("hidden_size"), fields.size("depth")
    heads = fields.size("num_heads")
    fields.must_divide(heads, hidden, "num_heads", "hidden_size")
    merge, cell = fields.size("spatial_merge_size"), fields.size("patch_size")
    window = fields.size("window_size")
    if window < cell * merge:
        fields.refuse(
            "window_size", f"it contradicts a token of {cell * merge} pixels, which is larger"
        )
    net = Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=fields.size("intermediate_size"),
        qkv_bias=True,
        output_bias=True,
        ffn_bias=True,
        causal=False,
        window=(window // merge // cell * merge) ** 2,
        unwindowed=fields.numbered_of("fullatt_block_indexes", layers),
    )
    net = _as_stated(fields, net, "qwen2_5_vl_vision")
    encoder = _encoder(fields, name, net, patch_bias=False)
    return encoder, _merger(encoder, "RMSNorm", fields.size("out_hidden_size"))


def qwen3_vision(fields: Fields, name: str) -> Tower:
    """Return Qwen3-VL's encoder, its patch merger and the mergers of its deepstack."""
    net = _as_stated(fields, plain_net(fields, fields.size("depth")), "qwen3_vl_vision")
    table = fields.size("num_position_embeddings")
    if math.isqrt(table) ** 2 != table:
        fields.refuse("num_position_embeddings", "the table must be a square")
    encoder = replace(
        _encoder(fields, name, net, image_size=768), positions=table, interpolated=True
    )
    merger = _merger(encoder, "LayerNorm", fields.size("out_hidden_size"))
    layers = fields.numbered_of("deepstack_visual_indexes", net.layers)
    copied: tuple[Normalization, int] = ("LayerNorm", merger.widths[0])
    return encoder, replace(merger, inner_layers=layers, copy_norm=copied)


def _as_stated(fields: Fields, net: Transformer, kind: str) -> Transformer:
    functions = functions_of_section(fields, kind)
    activation = activation_of(fields, functions, net.gated)
    return replace(net, activation=activation, epsilon=functions.epsilon)


def _encoder(
    fields: Fields, name: str, net: Transformer, *, image_size: int = 672, patch_bias: bool = True
) -> VisionEncoder:
    # The networks take images of any size: `image_size` is for files that state none.
    channels = "in_channels" if "in_channels" in fields else "in_chans"
    _check_rotary(fields)
    return VisionEncoder(
        name=name,
        net=net,
        image_size=fields.size_or("image_size", image_size, least=1),
        patch_size=fields.size("patch_size"),
        channels=fields.size_or(channels, 3, least=1),
        frames_per_patch=fields.size("temporal_patch_size"),
        merge=fields.size("spatial_merge_size"),
        biased_patches=patch_bias,
        norms=0,
    )


def _check_rotary(fields: Fields) -> None:
    name = "rope_parameters"
    rotary = fields.section(name) if name in fields else Fields({})
    if rotary.number_or("rope_theta", ROTARY_BASE) != ROTARY_BASE:
        rotary.refuse("rope_theta", f"an encoder of images can run with {ROTARY_BASE:g}")


def _merger(encoder: VisionEncoder, norm: Normalization, width: int) -> Projector:
    merged = encoder.net.hidden * encoder.merge**2
    return Projector((merged, merged, width), norm=(norm, encoder.net.hidden))
