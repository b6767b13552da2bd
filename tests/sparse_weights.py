"""Checkpoints of any size whose files have headers and holes for data."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mimokit.architecture.huggingface.families import family_of
from mimokit.planning.weights.directory import ITEM_BYTES

LLAMA_70B: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
    "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
"""Llama-2-70B: 68.98e9 parameters."""


def write_file(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: str = "BF16") -> None:
    """Write a safetensors file of these tensors; its data are a hole."""
    header, reached = {}, 0
    for name, shape in shapes.items():
        size = math.prod(shape) * ITEM_BYTES[dtype]
        header[name] = {
            "dtype": dtype, "shape": list(shape), "data_offsets": [reached, reached + size]
        }  # fmt: skip
        reached += size
    write_header(path, header, reached)


def write_header(path: Path, header: Mapping[str, Any], data_bytes: int) -> None:
    """Write a header and as many bytes of data."""
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + data_bytes)


OF_LLAMA = ("model.embed_tokens.weight", "lm_head.weight")


def sparse_checkpoint(
    directory: Path, config: Mapping[str, Any], files: int = 1, known: tuple[str, ...] = OF_LLAMA
) -> Path:
    """Write the headers of a checkpoint.

    Args:
        directory: it is made.
        config: content of its config.json.
        files: over which tensors are dealt.
        known: names from which the others follow.
    """
    directory.mkdir(parents=True, exist_ok=True)
    directory.joinpath("config.json").write_text(json.dumps(config))
    tensors = list(family_of(config, known).found.tensors.items())
    if files == 1:
        write_file(directory / "model.safetensors", dict(tensors))
        return directory
    places: dict[str, str] = {}
    for number in range(files):
        name = f"model-{number + 1:05}-of-{files:05}.safetensors"
        part = dict(tensors[number::files])
        write_file(directory / name, part)
        places |= dict.fromkeys(part, name)
    index = {"metadata": {}, "weight_map": places}
    directory.joinpath("model.safetensors.index.json").write_text(json.dumps(index))
    return directory


LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 101,
    "tie_word_embeddings": False,
}  # fmt: skip
CLIP: dict[str, Any] = {
    "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 4, "num_attention_heads": 8, "image_size": 8, "patch_size": 4,
}  # fmt: skip
SMALL: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "llama": (LLAMA, OF_LLAMA),
    "qwen2": (
        {**LLAMA, "model_type": "qwen2", "num_key_value_heads": 2, "tie_word_embeddings": True},
        OF_LLAMA,
    ),
    "mimo": ({**LLAMA, "model_type": "mimo", "num_nextn_predict_layers": 2}, OF_LLAMA),
    "gpt2": (
        {
            "model_type": "gpt2", "vocab_size": 101, "n_positions": 24, "n_embd": 32,
            "n_layer": 4, "n_head": 8,
        },
        ("transformer.wte.weight",),
    ),
    "clip": (CLIP, ("embeddings.patch_embedding.weight",)),
    "llava": (
        {
            "model_type": "llava", "vision_config": CLIP, "text_config": LLAMA,
            "image_token_index": 100,
        },
        (
            "vision_tower.embeddings.patch_embedding.weight", "linear_1.weight",
            "language_model.model.embed_tokens.weight", "language_model.lm_head.weight",
        ),
    ),
}  # fmt: skip
"""Family -> config of a small model, and the names from which the others follow."""


def small_checkpoint(directory: Path, family: str, files: int = 1) -> Path:
    """Write the headers of a small checkpoint of a family of `SMALL`."""
    config, known = SMALL[family]
    return sparse_checkpoint(directory, config, files, known)
