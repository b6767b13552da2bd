"""Shards back to the tensors of a checkpoint, by the formulas of Megatron's own converters.

It knows nothing of the plan: which way a parameter is cut follows from its name, and query, key and
value are separated by `view(groups, heads per group + 2, width, …)`.
"""

from collections.abc import Mapping, Sequence

import torch

Tensors = dict[str, torch.Tensor]
LAYER = {
    "input_layernorm": "input_layernorm", "pre_mlp_layernorm": "post_attention_layernorm",
    "self_attention.linear_proj": "self_attn.o_proj", "mlp.linear_fc2": "mlp.down_proj",
    "self_attention.q_layernorm": "self_attn.q_norm",
    "self_attention.k_layernorm": "self_attn.k_norm",
}  # fmt: skip
VISION = {
    "input_layernorm": "layer_norm1", "pre_mlp_layernorm": "layer_norm2",
    "self_attention.linear_proj": "self_attn.out_proj", "mlp.linear_fc1": "mlp.fc1",
    "mlp.linear_fc2": "mlp.fc2",
}  # fmt: skip
GPT2 = {
    "input_layernorm": "ln_1", "pre_mlp_layernorm": "ln_2",
    "self_attention.linear_proj": "attn.c_proj", "mlp.linear_fc1": "mlp.c_fc",
    "mlp.linear_fc2": "mlp.c_proj",
}  # fmt: skip
OUTSIDE = {
    "embedding.word_embeddings.weight": "embed_tokens.weight",
    "output_layer.weight": "lm_head.weight",
    "decoder.final_layernorm.weight": "norm.weight",
}
FURTHER = {
    "enorm.weight": "token_layernorm.weight", "hnorm.weight": "hidden_layernorm.weight",
    "eh_proj.weight": "input_proj.weight", "final_layernorm.weight": "final_layernorm.weight",
}  # fmt: skip
GPT2_OUTSIDE = {
    "embedding.word_embeddings.weight": "wte.weight",
    "embedding.position_embeddings.weight": "wpe.weight",
    "decoder.final_layernorm.weight": "ln_f.weight",
    "decoder.final_layernorm.bias": "ln_f.bias",
}
VISION_OUTSIDE = {
    "class_token": "embeddings.class_embedding",
    "patch_embedding.weight": "embeddings.patch_embedding.weight",
    "patch_embedding.bias": "embeddings.patch_embedding.bias",
    "position_embedding": "embeddings.position_embedding.weight",
    "pre_layernorm.weight": "pre_layrnorm.weight",
    "pre_layernorm.bias": "pre_layrnorm.bias",
    "decoder.final_layernorm.weight": "post_layernorm.weight",
    "decoder.final_layernorm.bias": "post_layernorm.bias",
}


def joined(stages: Sequence[Sequence[Mapping[str, torch.Tensor]]]) -> Tensors:
    """Join the shards of tensor parallel ranks; stages -> ranks -> shard."""
    return {
        name: _joined(name, [one[name] for one in ranks]) for ranks in stages for name in ranks[0]
    }


def _joined(name: str, parts: list[torch.Tensor]) -> torch.Tensor:
    if name.endswith(("linear_proj.weight", "linear_fc2.weight")):
        return torch.cat(parts, dim=1)
    if "linear_fc1" in name and gated(name, parts[0], len(parts)):
        halves = [part.chunk(2) for part in parts]
        return torch.cat([half for side in zip(*halves, strict=True) for half in side])
    cut = ("linear_qkv", "linear_fc1", "word_embeddings", "output_layer", "eh_proj")
    if any(one in name for one in cut):
        return torch.cat(parts)
    assert all(torch.equal(part, parts[0]) for part in parts), name
    return parts[0]


def gated(name: str, part: torch.Tensor, ranks: int) -> bool:
    """The language models with Llama's names are, with a width of 48; GPT-2's is 128."""
    return "modality" not in name and len(part) * ranks == 96


def to_hf(whole: Tensors, heads: int, groups: int, width: int, vocab: int | None) -> Tensors:
    """Return the tensors of a language model or tower; names without the prefix of the file.

    Args:
        whole: as `joined` returns it, of one module, without the module's prefix.
        heads: query heads.
        groups: key and value heads.
        width: of a head.
        vocab: rows of the vocabulary; None for a tower.
    """
    gpt2 = "embedding.position_embeddings.weight" in whole
    outside, layer = (GPT2_OUTSIDE, GPT2) if gpt2 else (OUTSIDE, LAYER)
    if vocab is None:
        outside, layer = VISION_OUTSIDE, VISION
    stem = "h." if gpt2 else "encoder.layers." if vocab is None else "layers."
    found: Tensors = {}
    for name, value in whole.items():
        if name.startswith("mtp.layers."):
            found |= _of_further_tokens(name, value, heads, groups, width)
            continue
        if name in outside:
            table = name in ("embedding.word_embeddings.weight", "output_layer.weight")
            found[outside[name]] = value[:vocab] if table else value
            continue
        if not name.startswith("decoder.layers."):
            found[name] = value
            continue
        number, _, rest = name.removeprefix("decoder.layers.").partition(".")
        module, _, kind = rest.rpartition(".")
        file = f"{stem}{number}."
        if module == "self_attention.linear_qkv":
            fused = value.view(groups, heads // groups + 2, width, *value.shape[1:])
            rows = (fused[:, :-2], fused[:, -2:-1], fused[:, -1:])
            parts = [one.reshape(-1, *value.shape[1:]) for one in rows]
            if gpt2:
                found[f"{file}attn.c_attn.{kind}"] = torch.cat(parts)
            else:
                for letter, part in zip("qkv", parts, strict=True):
                    found[f"{file}self_attn.{letter}_proj.{kind}"] = part
        elif module == "mlp.linear_fc1" and layer is LAYER:
            found[f"{file}mlp.gate_proj.{kind}"], found[f"{file}mlp.up_proj.{kind}"] = value.chunk(
                2
            )
        else:
            found[f"{file}{layer[module]}.{kind}"] = value
    if gpt2:  # Conv1D stores its matrices transposed
        return {
            name: value.T if ".c_" in name and value.dim() == 2 else value
            for name, value in found.items()
        }
    return found


def _of_further_tokens(
    name: str, value: torch.Tensor, heads: int, groups: int, width: int
) -> Tensors:
    """Return the tensors of MiMo's layers of further tokens that a parameter consists of."""
    number, _, rest = name.removeprefix("mtp.layers.").partition(".")
    file = f"mtp_layers.{number}."
    if rest in FURTHER:
        swapped = torch.cat(value.chunk(2, dim=1)[::-1], dim=1) if "proj" in rest else value
        return {f"{file}{FURTHER[rest]}": swapped}
    layer = {f"decoder.layers.0.{rest.removeprefix('mtp_model_layer.')}": value}
    parts = to_hf(layer, heads, groups, width, 1)
    return {one.replace("layers.0.", file): part for one, part in parts.items()}


def fused(found: Tensors) -> Tensors:
    """Return the tensors of `to_hf` with the names of Phi-3, which are fewer."""
    left = dict(found)
    for first in [name for name in found if name.endswith(("q_proj.weight", "gate_proj.weight"))]:
        module, _, kind = first.rpartition(".")[0].rpartition(".")
        names = ("q", "k", "v") if kind == "q_proj" else ("gate", "up")
        parts = [left.pop(f"{module}.{name}_proj.weight") for name in names]
        left[f"{module}.{'qkv' if kind == 'q_proj' else 'gate_up'}_proj.weight"] = torch.cat(parts)
    return left
