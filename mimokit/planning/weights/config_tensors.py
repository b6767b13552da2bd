"""The tensors that a config.json describes, where no weights lie next to it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mimokit.architecture.huggingface.families import family_of
from mimokit.planning.weights.directory import (
    CONFIG,
    FLOATING,
    INDEX,
    SINGLE,
    StoredTensor,
    WeightDirectory,
    read_mapping,
    refused,
)
from mimokit.planning.weights.layout_files import LAYOUT, stored_weights
from mimokit.units import listed, shown

_KNOWN = (
    "model.embed_tokens.weight", "lm_head.weight", "transformer.wte.weight",
    "vision_tower.embeddings.patch_embedding.weight", "multi_modal_projector.linear_1.weight",
    "visual.patch_embed.proj.weight",
)  # fmt: skip
"""Names from which those of all other tensors of a family follow."""


def described_weights(source: str | os.PathLike[str]) -> WeightDirectory:
    """Return config and headers of weights; without weights, the tensors that its config describes.

    Args:
        source: a directory with a config.json, with weights or without, or a config.json.
    """
    path = Path(source)
    if os.path.isfile(path) and path.suffix == ".json":
        return _of_config(path)
    alone = os.path.exists(path / CONFIG) and not any(
        os.path.exists(path / name) for name in (SINGLE, INDEX, LAYOUT)
    )
    return _of_config(path / CONFIG) if alone else stored_weights(path)


def _of_config(file: Path) -> WeightDirectory:
    config = read_mapping(file)
    dtype = _dtype(file, config)
    tensors = {
        name: StoredTensor(CONFIG, dtype, shape, 0)
        for name, shape in family_of(config, _KNOWN).found.tensors.items()
    }
    return WeightDirectory(file.parent, config, tensors)


def _dtype(file: Path, config: Mapping[str, Any]) -> str:
    """Return safetensors' name of the dtype of a config; float32, as in transformers, without."""
    name = next((key for key in ("dtype", "torch_dtype") if config.get(key) is not None), None)
    stated = "float32" if name is None else config[name]
    for short, name_in_torch in FLOATING.items():
        if stated in (name_in_torch, f"torch.{name_in_torch}"):
            return short
    what = f"its {name} is {shown(stated)}; write {listed(list(FLOATING.values()))}"
    raise refused(file, str(name), stated, what)
