"""The tensors of vision towers (CLIP, SigLIP) and of LLaVA's projector."""

from __future__ import annotations

from mimokit.architecture.huggingface.checkpoint_tensors import CheckpointTensors, Cut, End
from mimokit.architecture.huggingface.language_tensors import add_qkv
from mimokit.architecture.modules import Projector, VisionEncoder
from mimokit.architecture.transformer import Transformer

OF_WHOLE_MODELS = (
    "text_model.", "text_projection.weight", "visual_projection.weight", "logit_scale",
    "logit_bias",
)  # fmt: skip
"""Tensors of a whole CLIP or SigLIP that are not of its vision tower."""


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
        _add_pairs(weights, f"{name}pre_layernorm", f"{prefix}pre_layrnorm", net.hidden, End.FIRST)
    for number in range(net.layers):
        _add_layer(weights, net, f"{prefix}encoder.layers.{number}.", name, number)
    if tower.norm_after:
        last = f"{name}decoder.final_layernorm"
        _add_pairs(weights, last, f"{prefix}post_layernorm", net.hidden, End.LAST)
    if tower.head == "attention":
        _add_pooling_head(weights, net, f"{prefix}head.", f"{name}head.")


def _add_embeddings(weights: CheckpointTensors, tower: VisionEncoder, file: str, name: str) -> None:
    width, patch = tower.net.hidden, tower.patch_size
    stored = (width, tower.channels, patch, patch)
    flat = (width, tower.channels * patch**2)
    weight = "patch_embedding.weight"
    weights.whole(f"{name}{weight}", f"{file}{weight}", flat, End.FIRST, stored)
    if tower.patch_bias:
        bias = "patch_embedding.bias"
        weights.whole(f"{name}{bias}", f"{file}{bias}", (width,), End.FIRST)
    if tower.class_token:
        weights.whole(
            f"{name}class_token", f"{file}class_embedding", (1, width), End.FIRST, (width,)
        )
    positions = (tower.positions, width)
    theirs = f"{file}position_embedding.weight"
    weights.whole(f"{name}position_embedding", theirs, positions, End.FIRST)


def _add_pairs(
    weights: CheckpointTensors, name: str, tensor: str, width: int, place: int | End
) -> None:
    """Add weight and bias of a norm."""
    for kind in ("weight", "bias"):
        weights.whole(f"{name}.{kind}", f"{tensor}.{kind}", (width,), place)


def _add_layer(
    weights: CheckpointTensors, net: Transformer, file: str, name: str, number: int
) -> None:
    ours, hidden, ffn = f"{name}decoder.layers.{number}.", net.hidden, net.ffn
    _add_pairs(weights, f"{ours}input_layernorm", f"{file}layer_norm1", hidden, number)
    _add_pairs(weights, f"{ours}pre_mlp_layernorm", f"{file}layer_norm2", hidden, number)
    attention = f"{file}self_attn."
    for kind in ("weight", "bias"):
        tensors = [f"{attention}{letter}_proj.{kind}" for letter in "qkv"]
        add_qkv(weights, net, f"{ours}self_attention.linear_qkv.{kind}", tensors, number)
    proj = "self_attention.linear_proj"
    _add_row_parallel(weights, f"{ours}{proj}", f"{attention}out_proj", (hidden, hidden), number)
    add_mlp(weights, f"{ours}mlp.", (f"{file}mlp.fc1", f"{file}mlp.fc2"), (hidden, ffn, hidden),
            number)  # fmt: skip


def _add_row_parallel(
    weights: CheckpointTensors, name: str, tensor: str, shape: tuple[int, int], place: int | End,
    bias: bool = True,
) -> None:  # fmt: skip
    weights.matrix(f"{name}.weight", f"{tensor}.weight", shape, Cut.COLUMNS, place)
    if bias:
        weights.whole(f"{name}.bias", f"{tensor}.bias", shape[:1], place)


def add_mlp(
    weights: CheckpointTensors, name: str, tensors: tuple[str, str],
    widths: tuple[int, int, int], place: int | End, bias: bool = True,
) -> None:  # fmt: skip
    """Add two matrices with an activation between them.

    Args:
        name: in front of linear_fc1 and linear_fc2.
        tensors: the names of both in the file, without weight and bias.
        widths: input, inner and output width.
        place: as in `WholeParameter`.
        bias: both have one.
    """
    taken_in, inner, made = widths
    first, second = tensors
    fc1 = f"{name}linear_fc1"
    weights.matrix(f"{fc1}.weight", f"{first}.weight", (inner, taken_in), Cut.ROWS, place)
    if bias:
        weights.stack(f"{fc1}.bias", {f"{first}.bias": inner}, (inner,), Cut.ROWS, place)
    _add_row_parallel(weights, f"{name}linear_fc2", second, (made, inner), place, bias)


def add_projector(weights: CheckpointTensors, projector: Projector, prefix: str, name: str) -> None:
    """Add LLaVA's projector, which lies behind the tower.

    Args:
        projector: its sizes; three widths.
        prefix: in front of `linear_1.` in the file.
        name: in front of Megatron's names.
    """
    taken_in, inner, made = projector.widths
    tensors = (f"{prefix}linear_1", f"{prefix}linear_2")
    add_mlp(weights, f"{name}encoder.", tensors, (taken_in, inner, made), End.LAST, projector.bias)


def _add_pooling_head(weights: CheckpointTensors, net: Transformer, file: str, name: str) -> None:
    """Add SigLIP's pooling by attention; every rank of the last stage holds it whole."""
    width, ffn = net.hidden, net.ffn
    shapes: dict[str, tuple[int, ...]] = {
        "probe": (1, 1, width),
        "attention.in_proj_weight": (3 * width, width),
        "attention.in_proj_bias": (3 * width,),
        "attention.out_proj.weight": (width, width),
        "attention.out_proj.bias": (width,),
        "layernorm.weight": (width,),
        "layernorm.bias": (width,),
        "mlp.fc1.weight": (ffn, width),
        "mlp.fc1.bias": (ffn,),
        "mlp.fc2.weight": (width, ffn),
        "mlp.fc2.bias": (width,),
    }
    for part, shape in shapes.items():
        weights.whole(f"{name}{part}", f"{file}{part}", shape, End.LAST)
