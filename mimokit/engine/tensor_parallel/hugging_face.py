"""What Hugging Face's own model computes, part by part: the oracle of checks."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from mimokit.engine.tensor_parallel.checking import images_of
from mimokit.engine.tensor_parallel.language import Batch
from mimokit.engine.tensor_parallel.layers import FINAL_NORM
from mimokit.planning.weights.check_plan import ARITHMETIC, EMBEDDING, OUTPUT, CheckInput
from mimokit.planning.weights.layout_files import LAYOUT

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
        directory: with its files.
        given: what the model is given.
        dtype: torch's name of that of the weights.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()
    auto = transformers.AutoModelForCausalLM if given.rows else transformers.AutoModel
    loaded = auto.from_pretrained(directory, dtype=getattr(torch, dtype))
    loaded = loaded.to(getattr(torch, ARITHMETIC[dtype])).eval()
    model = loaded if given.rows else getattr(loaded, "vision_model", loaded)
    found: dict[str, torch.Tensor] = {}
    _watch(model.base_model if given.rows else model, found)
    with torch.no_grad():
        if given.rows:
            output = model(use_cache=False, **_tokens(given)).logits
        else:
            made = model(images_of(given).to(model.dtype))
            output = made.last_hidden_state if made.pooler_output is None else made.pooler_output
    found[OUTPUT] = output
    return found


def _tokens(given: CheckInput) -> dict[str, torch.Tensor]:
    """Return token ids, mask and positions of rows that are padded on the left."""
    batch = Batch.of([list(row) for row in given.rows])
    places = torch.arange(batch.ids.shape[1]) - batch.padding[:, None]
    return {
        "input_ids": batch.ids,
        "attention_mask": (places >= 0).long(),
        "position_ids": places.clamp(min=0),
    }


def _watch(model: Any, found: dict[str, torch.Tensor]) -> None:
    """Let the layers and the last norm of a model write down what they make."""
    layers = next(
        one
        for name in ("layers", "h", "encoder.layers")
        if (one := _inner(model, name)) is not None
    )

    def keep(name: str) -> Any:
        def hook(module: Any, given: Any, made: Any) -> None:
            found[name] = made[0] if isinstance(made, tuple) else made

        return hook

    def first(module: Any, given: Any, named: Any) -> None:
        found[EMBEDDING] = given[0] if given else named["hidden_states"]

    layers[0].register_forward_pre_hook(first, with_kwargs=True)
    for number, layer in enumerate(layers):
        layer.register_forward_hook(keep(f"decoder.layers.{number}"))
    last = next(getattr(model, one) for one in FINAL_NORMS if hasattr(model, one))
    last.register_forward_hook(keep(FINAL_NORM))


def _inner(model: Any, path: str) -> Any:
    for name in path.split("."):
        model = getattr(model, name, None)
    return model
