"""The tensors of vision towers (CLIP, SigLIP) and of LLaVA's projector."""

from __future__ import annotations

from collections.abc import Mapping

from mimokit.architecture.huggingface.checkpoint_tensors import CheckpointTensors
from mimokit.architecture.huggingface.language_tensors import add_qkv
from mimokit.architecture.modules import Projector, VisionEncoder
from mimokit.architecture.transformer import Transformer

OF_WHOLE_MODELS = (
    "text_model.", "text_projection.weight", "visual_projection.weight", "logit_scale",
    "logit_bias",
)  # fmt: skip
"""Tensors of a whole CLIP or SigLIP that are not of its vision tower."""

_POOLING_HEAD = (
    "probe", "attention.in_proj_weight", "attention.in_proj_bias", "attention.out_proj.weight",
    "attention.out_proj.bias", "layernorm.weight", "layernorm.bias", "mlp.fc1.weight",
    "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias",
)  # fmt: skip
"""SigLIP's pooling by attention; every rank of the last stage holds it whole."""


def add_tower(
    weights: CheckpointTensors, tower: VisionEncoder, prefix: str, name: str = ""
) -> None:
    """Add the parameters of a vision tower, all its layers and norms included.

    Args:
        prefix: in front of `embeddings.` and `encoder.` in the file.
        name: in front of the names in the encoder.
    """
    net = tower.net
    weights.passed_over.append(".embeddings.position_ids")
    _add_embeddings(weights, tower, f"{prefix}embeddings.", name)
    if tower.norms > 1:
        _add_pairs(weights, {f"{name}pre_layernorm": f"{prefix}pre_layrnorm"})
    for number in range(net.layers):
        ours = f"{name}decoder.layers.{number}."
        _add_layer(weights, net, f"{prefix}encoder.layers.{number}.", ours)
    if tower.norm_after:
        _add_pairs(weights, {f"{name}decoder.final_layernorm": f"{prefix}post_layernorm"})
    if tower.head == "attention":
        for part in _POOLING_HEAD:
            weights.copy(f"{name}head.{part}", f"{prefix}head.{part}")


def _add_embeddings(weights: CheckpointTensors, tower: VisionEncoder, file: str, name: str) -> None:
    width, patch = tower.net.hidden, tower.patch_size
    weight = "patch_embedding.weight"
    weights.copy(f"{name}{weight}", f"{file}{weight}", (width, tower.channels, patch, patch))
    if tower.patch_bias:
        weights.copy(f"{name}patch_embedding.bias", f"{file}patch_embedding.bias")
    if tower.class_token:
        weights.copy(f"{name}class_token", f"{file}class_embedding", (width,))
    weights.copy(f"{name}position_embedding", f"{file}position_embedding.weight")


def _add_pairs(weights: CheckpointTensors, names: Mapping[str, str], bias: bool = True) -> None:
    """Add weight and bias of norms and matrices: Megatron's name -> that in the file."""
    for name, tensor in names.items():
        for kind in ("weight", "bias") if bias else ("weight",):
            weights.copy(f"{name}.{kind}", f"{tensor}.{kind}")


def _add_layer(weights: CheckpointTensors, net: Transformer, file: str, ours: str) -> None:
    attention = f"{file}self_attn."
    for kind in ("weight", "bias"):
        tensors = [f"{attention}{letter}_proj.{kind}" for letter in "qkv"]
        add_qkv(weights, net, f"{ours}self_attention.linear_qkv.{kind}", tensors)
    same = {
        f"{ours}input_layernorm": f"{file}layer_norm1",
        f"{ours}self_attention.linear_proj": f"{attention}out_proj",
        f"{ours}pre_mlp_layernorm": f"{file}layer_norm2",
        f"{ours}mlp.linear_fc1": f"{file}mlp.fc1",
        f"{ours}mlp.linear_fc2": f"{file}mlp.fc2",
    }
    _add_pairs(weights, same)


def add_projector(weights: CheckpointTensors, projector: Projector, prefix: str, name: str) -> None:
    """Add LLaVA's projector, which lies behind the tower.

    Args:
        prefix: in front of `linear_1.` in the file.
    """
    matrices = {f"{name}encoder.linear_fc{n}": f"{prefix}linear_{n}" for n in (1, 2)}
    _add_pairs(weights, matrices, projector.bias)
