"""What Hugging Face's own model computes from weights, part by part."""

import os
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from mimokit.architecture.huggingface import ENCODER, LANGUAGE
from mimokit.extras.generation.check.inputs import (
    ARITHMETIC,
    FINAL_NORM,
    OUTPUT,
    PROJECTOR_PART,
    CheckInput,
)
from mimokit.extras.generation.check.parts import Parts, record, record_layers
from mimokit.planning.weights import CONFIG, LAYOUT, read_mapping

LAYERS = ("layers", "h", "encoder.layers")
FINAL_NORMS = ("norm", "ln_f")
"""What Hugging Face's models call their layers, and the norm after those of a language model."""

READ_AS: Mapping[str, str] = {"mimo": "Qwen2ForCausalLM"}
"""`model_type` -> the class of `transformers` that reads its weights, where it has none of that
name; layers that predict further tokens aside."""


def can_load(directory: str | os.PathLike[str]) -> bool:
    """Return whether `transformers` is installed and the directory is one that it reads."""
    return find_spec("transformers") is not None and not (Path(directory) / LAYOUT).exists()


def hugging_face(directory: str | os.PathLike[str], inputs: CheckInput, dtype: str) -> Parts:
    """Return the outputs of the parts of Hugging Face's model, in the dtype of `ARITHMETIC`."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()
    if inputs.rows and inputs.images:
        auto, run = transformers.AutoModelForImageTextToText, _of_llava
    elif inputs.rows:
        auto, run = transformers.AutoModelForCausalLM, _of_language
        kind = str(read_mapping(Path(directory) / CONFIG).get("model_type"))
        if kind in READ_AS:
            auto = getattr(transformers, READ_AS[kind])
            logging.set_verbosity_error()  # it lists the tensors that it passes over
    else:
        auto, run = transformers.AutoModel, _of_tower
    model = auto.from_pretrained(directory, dtype=getattr(torch, dtype))
    model = model.to(getattr(torch, ARITHMETIC[dtype])).eval()
    for norm in model.modules():
        if hasattr(norm, "variance_epsilon"):  # its RMSNorm computes in fp32, of fp64 as well
            norm.forward = partial(
                torch.nn.functional.rms_norm, normalized_shape=norm.weight.shape,
                weight=norm.weight, eps=norm.variance_epsilon,
            )  # fmt: skip
    parts = Parts()
    with torch.no_grad():
        run(model, inputs, parts)
    return parts


def _of_language(model: Any, inputs: CheckInput, parts: Parts) -> None:
    inner = getattr(model.base_model, "language_model", model.base_model)
    prefix = inputs.name(LANGUAGE)
    record_layers(parts, prefix, _layers(inner))
    norm = next(getattr(inner, name) for name in FINAL_NORMS if hasattr(inner, name))
    record(parts, f"{prefix}{FINAL_NORM}", norm)
    parts[f"{prefix}{OUTPUT}"] = model(input_ids=inputs.ids(), use_cache=False).logits


def _of_tower(model: Any, inputs: CheckInput, parts: Parts) -> None:
    tower = getattr(model, "vision_model", model)
    record_layers(parts, "", _layers(tower))
    made = tower(inputs.pixels().to(model.dtype))
    if hasattr(tower.embeddings, "class_embedding"):  # a module has the norm behind its patches
        rows = tower.post_layernorm(made.last_hidden_state)[:, 1:]
    else:
        rows = made.last_hidden_state if made.pooler_output is None else made.pooler_output
    parts[OUTPUT] = rows.flatten(0, -2)


def _of_llava(model: Any, inputs: CheckInput, parts: Parts) -> None:
    inner = model.base_model
    tower = getattr(inner.vision_tower, "vision_model", inner.vision_tower)
    record_layers(parts, ENCODER, _layers(tower))
    record(parts, PROJECTOR_PART, inner.multi_modal_projector, lambda rows: rows.flatten(0, -2))
    model.get_image_features(pixel_values=inputs.pixels().to(model.dtype))
    _of_language(model, inputs, parts)


def _layers(model: Any) -> Any:
    modules = dict(model.named_modules())
    return next(modules[name] for name in LAYERS if name in modules)
