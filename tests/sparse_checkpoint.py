"""Checkpoints of any size whose files have headers and holes for data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mimokit.architecture.huggingface.families import family_of
from mimokit.planning.weights.headers import ITEM_BYTES

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


def sparse_checkpoint(directory: Path, config: Mapping[str, Any], files: int = 1) -> Path:
    """Write a checkpoint of a language model with Llama's names."""
    directory.mkdir(parents=True, exist_ok=True)
    directory.joinpath("config.json").write_text(json.dumps(config))
    known = ("model.embed_tokens.weight", "lm_head.weight")
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
