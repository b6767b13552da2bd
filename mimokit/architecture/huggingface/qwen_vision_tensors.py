"""The tensors of the vision towers of Qwen-VL and of their patch mergers."""

from mimokit.architecture.encoders import VisionEncoder
from mimokit.architecture.huggingface.weight_tensors import (
    WeightTensors,
    add_fused_qkv,
    add_norm,
    add_pairs,
)
from mimokit.architecture.modules import EncoderBranch, Projector
from mimokit.architecture.transformer import Transformer

QWEN_VISION_TYPES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""The values of `model_type` that have such a tower."""

PATCHES = "patch_embed.proj.weight"
"""Ends the name of the tensor of the patch embedding."""

_FEED_FORWARD = {
    "qwen2_vl": {"mlp.linear_fc1": "mlp.fc1", "mlp.linear_fc2": "mlp.fc2"},
    "qwen2_5_vl": {"mlp.linear_fc2": "mlp.down_proj"},
    "qwen3_vl": {"mlp.linear_fc1": "mlp.linear_fc1", "mlp.linear_fc2": "mlp.linear_fc2"},
}
"""Megatron's names in a layer -> those in the file, of matrices that are one tensor."""


def add_qwen_tower(
    weights: WeightTensors, kind: str, branch: EncoderBranch, prefix: str, encoder: str, name: str
) -> None:
    """Add the parameters of a tower and of its mergers."""
    tower = branch.encoder
    assert isinstance(tower, VisionEncoder)
    _add_embeddings(weights, tower, prefix, encoder)
    for number in range(tower.net.layers):
        file, ours = f"{prefix}blocks.{number}.", f"{encoder}decoder.layers.{number}."
        _add_layer(weights, kind, tower.net, file, ours)
    projector = branch.projector
    _add_merger(weights, kind, projector, f"{prefix}merger.", f"{name}encoder.")
    for number in range(projector.copies):
        file, ours = f"{prefix}deepstack_merger_list.{number}.", f"{name}inner.{number}.encoder."
        _add_merger(weights, kind, projector, file, ours)


def _add_embeddings(weights: WeightTensors, tower: VisionEncoder, file: str, name: str) -> None:
    """Add patches, which the file has as those of a `Conv3d`, and a table of positions."""
    weight, images = f"{name}patch_embedding.weight", tower.images
    pixels = images.frames_per_patch, images.patch_size, images.patch_size
    stored = (tower.net.hidden, images.num_channels, *pixels)
    weights.copy(weight, f"{file}{PATCHES}", stored)
    if tower.biased_patches:
        weights.copy(f"{name}patch_embedding.bias", f"{file}patch_embed.proj.bias")
    if tower.table:
        weights.copy(f"{name}position_embedding", f"{file}pos_embed.weight")


def _add_layer(weights: WeightTensors, kind: str, net: Transformer, file: str, ours: str) -> None:
    attention = f"{ours}self_attention."
    for norm, theirs in (("input_layernorm", "norm1"), ("pre_mlp_layernorm", "norm2")):
        add_norm(weights, net.norm, f"{ours}{norm}", f"{file}{theirs}")
    for part in ("weight", "bias"):
        fused = f"{attention}linear_qkv.{part}"
        add_fused_qkv(weights, net, fused, f"{file}attn.qkv.{part}")
        if net.gated:
            pair = [f"{file}mlp.{product}_proj.{part}" for product in ("gate", "up")]
            weights.stack(f"{ours}mlp.linear_fc1.{part}", pair)
    matrices = {f"{ours}{own}": f"{file}{theirs}" for own, theirs in _FEED_FORWARD[kind].items()}
    add_pairs(weights, {f"{attention}linear_proj": f"{file}attn.proj", **matrices})


def _add_merger(
    weights: WeightTensors, kind: str, projector: Projector, file: str, ours: str
) -> None:
    assert projector.norm is not None
    newer = kind == "qwen3_vl"
    add_norm(weights, projector.norm[0], f"{ours}norm", f"{file}{'norm' if newer else 'ln_q'}")
    theirs = ("linear_fc1", "linear_fc2") if newer else ("mlp.0", "mlp.2")
    matrices = {
        f"{ours}matrices.{number}": f"{file}{tensor}" for number, tensor in enumerate(theirs)
    }
    add_pairs(weights, matrices)
