"""What Hugging Face's own model computes, part by part: the oracle of checks."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from mimokit.architecture.huggingface.families import ENCODER, LANGUAGE
from mimokit.engine.inference.checking import images_of
from mimokit.engine.inference.language import PaddedTokens
from mimokit.engine.inference.layers import FINAL_NORM
from mimokit.engine.inference.llava import PROJECTOR_PART
from mimokit.planning.weights.layout_files import LAYOUT
from mimokit.planning.weights.running import ARITHMETIC, EMBEDDING, OUTPUT, CheckInput

FINAL_NORMS = ("norm", "ln_f", "post_layernorm")
"""What Hugging Face's models call the norm after their layers."""


def can_load(directory: str | os.PathLike[str]) -> bool:
    """Return whether `transformers` is installed and the directory is one that it reads."""
    return find_spec("transformers") is not None and not (Path(directory) / LAYOUT).exists()


def hugging_face(
    directory: str | os.PathLike[str], given: CheckInput, dtype: str
) -> dict[str, torch.Tensor]:
    """Return the outputs of the parts of Hugging Face's model, in the dtype of `ARITHMETIC`.

    Args:
        dtype: torch's name of that of the weights.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()
    if given.rows and given.images:
        auto, run = transformers.AutoModelForImageTextToText, _of_llava
    elif given.rows:
        auto, run = transformers.AutoModelForCausalLM, _of_language
    else:
        auto, run = transformers.AutoModel, _of_tower
    model = auto.from_pretrained(directory, dtype=getattr(torch, dtype))
    with torch.no_grad():
        return run(model.to(getattr(torch, ARITHMETIC[dtype])).eval(), given)


def _of_language(model: Any, given: CheckInput) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    _watch(model.base_model, found)
    found[OUTPUT] = model(use_cache=False, **_tokens(given)).logits
    return found


def _of_tower(model: Any, given: CheckInput) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    model = getattr(model, "vision_model", model)
    _watch(model, found)
    made = model(images_of(given).to(model.dtype))
    found[OUTPUT] = made.last_hidden_state if made.pooler_output is None else made.pooler_output
    return found


def _of_llava(model: Any, given: CheckInput) -> dict[str, torch.Tensor]:
    """Return the parts of tower and projector on images, and of the language model on tokens."""
    found: dict[str, torch.Tensor] = {}
    inner = model.base_model
    _watch(getattr(inner.vision_tower, "vision_model", inner.vision_tower), found, ENCODER)
    _keep(inner.multi_modal_projector, found, PROJECTOR_PART)
    _watch(inner.language_model, found, LANGUAGE)
    model.get_image_features(pixel_values=images_of(given).to(model.dtype))
    found[f"{LANGUAGE}{OUTPUT}"] = model(use_cache=False, **_tokens(given)).logits
    return found


def _tokens(given: CheckInput) -> dict[str, torch.Tensor]:
    """Return token ids, mask and positions of rows that are padded on the left."""
    batch = PaddedTokens.of([list(row) for row in given.rows])
    places = torch.arange(batch.ids.shape[1]) - batch.padding[:, None]
    return {
        "input_ids": batch.ids,
        "attention_mask": (places >= 0).long(),
        "position_ids": places.clamp(min=0),
    }


def _watch(model: Any, found: dict[str, torch.Tensor], prefix: str = "") -> None:
    """Let the layers and the last norm of a model write down what they make."""
    layers = next(
        one
        for name in ("layers", "h", "encoder.layers")
        if (one := _inner(model, name)) is not None
    )

    def first(module: Any, given: Any, named: Any) -> None:
        found[f"{prefix}{EMBEDDING}"] = given[0] if given else named["hidden_states"]

    layers[0].register_forward_pre_hook(first, with_kwargs=True)
    for number, layer in enumerate(layers):
        _keep(layer, found, f"{prefix}decoder.layers.{number}")
    last = next(getattr(model, one) for one in FINAL_NORMS if hasattr(model, one))
    _keep(last, found, f"{prefix}{FINAL_NORM}")


def _keep(module: Any, found: dict[str, torch.Tensor], name: str) -> None:
    """Let a module write down what it makes."""

    def hook(module: Any, given: Any, made: Any) -> None:
        found[name] = made[0] if isinstance(made, tuple) else made

    module.register_forward_hook(hook)


def _inner(model: Any, path: str) -> Any:
    for name in path.split("."):
        model = getattr(model, name, None)
    return model
