"""Compares what a layout computes with an oracle, part by part, on every rank.

The oracle is Hugging Face's own model, or one process with the same files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from mimokit.architecture.huggingface.families import ENCODER, LANGUAGE
from mimokit.engine.inference.exchange import Group, rank_of
from mimokit.engine.inference.language import LanguageShard, PaddedTokens
from mimokit.engine.inference.layers import FINAL_NORM, Watch
from mimokit.engine.inference.loading import Shard, load_shard
from mimokit.engine.inference.vision import PROJECTOR_PART, LlavaShard, TowerShard, under
from mimokit.planning.weights.directory import CONFIG, read_json
from mimokit.planning.weights.layout_files import LAYOUT
from mimokit.planning.weights.running import ARITHMETIC, EMBEDDING, OUTPUT, CheckInput

Parts = Mapping[str, torch.Tensor]
"""Part of a network -> its output; tokens in front of a row's first are padding."""

Receive = Callable[[torch.Tensor], torch.Tensor]
"""Returns the hidden states of the stage before, of the shape of the one given."""

Send = Callable[[torch.Tensor], None]
"""Sends hidden states to the next stage."""


@dataclass(frozen=True)
class PartDifference:
    """How far a part of a rank is from the oracle; `scale` is the oracle's largest entry."""

    largest: float
    scale: float


def images_of(inputs: CheckInput) -> torch.Tensor:
    """Return the seeded images of a check."""
    assert inputs.images is not None
    return torch.randn(inputs.images, generator=torch.Generator().manual_seed(inputs.seed))


def parts_on_rank(
    shard: Shard,
    inputs: CheckInput,
    receive: Receive | None = None,
    send: Send | None = None,
) -> dict[str, torch.Tensor]:
    """Return the outputs of the parts of this rank; of the last, this rank's logits. Collective.

    The first stage has nothing to receive, the last nothing to send.
    """
    parts: dict[str, torch.Tensor] = {}
    watch: Watch = parts.__setitem__
    if isinstance(shard, LlavaShard):
        if shard.tower is not None:
            shard.features(images_of(inputs), watch)
        shard, watch = shard.language, under(LANGUAGE, watch)
    hidden = None
    if receive is not None:
        hidden = receive(torch.empty(_hidden_shape(shard, inputs), dtype=shard.dtype))
    if isinstance(shard, LanguageShard):
        output = shard(PaddedTokens.of(inputs.rows, shard.device), hidden=hidden, watch=watch)
    else:
        output = shard(images_of(inputs), hidden, watch)
    if send is not None:
        send(output)
    return parts


def _hidden_shape(shard: LanguageShard | TowerShard, inputs: CheckInput) -> tuple[int, int, int]:
    width = shard.model.net.hidden
    if isinstance(shard, LanguageShard):
        return len(inputs.rows), max(map(len, inputs.rows)), width
    assert inputs.images is not None
    return inputs.images[0], shard.model.patches() + shard.model.class_token, width


def compared(
    shard: Shard, inputs: CheckInput, parts: Parts, oracle: Parts
) -> dict[str, PartDifference]:
    """Return how far the parts of this rank are from those of the oracle, which are whole."""
    if isinstance(shard, LlavaShard):
        words = {name: part for name, part in parts.items() if name.startswith(LANGUAGE)}
        pixels = {name: part for name, part in parts.items() if name not in words}
        differences = {}
        if shard.tower is not None:
            differences = compared(shard.tower, replace(inputs, rows=()), pixels, oracle)
        return differences | compared(shard.language, inputs, words, oracle)
    differences = {}
    for name, output in parts.items():
        wanted = oracle[name].to(output.device)
        real = _real(inputs, wanted)
        scale = float(wanted[real].abs().max())
        if name.endswith(OUTPUT) and isinstance(shard, LanguageShard):
            start = rank_of(shard.group) * output.shape[-1]
            wanted = wanted[..., start : start + output.shape[-1]]
            output = output[..., : wanted.shape[-1]]
        difference = (output.reshape(wanted.shape) - wanted)[real].abs()
        largest = float(difference.max()) if difference.numel() else 0.0
        differences[name] = PartDifference(largest, scale)
    return differences


def _real(inputs: CheckInput, part: torch.Tensor) -> torch.Tensor:
    """Return which tokens of a part are not padding."""
    if not inputs.rows:
        return torch.ones(part.shape[:1], dtype=torch.bool, device=part.device)
    return PaddedTokens.of(inputs.rows, part.device).places >= 0


def one_process(
    directory: str | os.PathLike[str], inputs: CheckInput, dtype: str
) -> dict[str, torch.Tensor]:
    """Return what one process computes from the same files."""
    return parts_on_rank(checked_shard(directory, None, dtype), inputs)


def checked_shard(directory: str | os.PathLike[str], group: Group, dtype: str, **how: Any) -> Shard:
    """Return a shard that computes in the dtype of `ARITHMETIC`; arguments as of `load_shard`."""
    arithmetic = getattr(torch, ARITHMETIC[dtype])
    return load_shard(directory, group, dtype=dtype, arithmetic=arithmetic, **how)


LAYERS = ("layers", "h", "encoder.layers")
FINAL_NORMS = ("norm", "ln_f", "post_layernorm")
"""What Hugging Face's models call the norm after their layers."""


READ_AS = {"mimo": "Qwen2ForCausalLM"}
"""`model_type` -> the class of `transformers` that reads its weights, where it has none of that
name; layers that predict further tokens aside."""


def can_load(directory: str | os.PathLike[str]) -> bool:
    """Return whether `transformers` is installed and the directory is one that it reads."""
    return find_spec("transformers") is not None and not (Path(directory) / LAYOUT).exists()


def hugging_face(
    directory: str | os.PathLike[str], inputs: CheckInput, dtype: str
) -> dict[str, torch.Tensor]:
    """Return the outputs of the parts of Hugging Face's model, in the dtype of `ARITHMETIC`."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()
    if inputs.rows and inputs.images:
        auto, run = transformers.AutoModelForImageTextToText, _of_llava
    elif inputs.rows:
        auto, run = transformers.AutoModelForCausalLM, _of_language
        kind = str(read_json(Path(directory) / CONFIG).get("model_type"))
        if kind in READ_AS:
            auto = getattr(transformers, READ_AS[kind])
            logging.set_verbosity_error()  # it lists the tensors that it passes over
    else:
        auto, run = transformers.AutoModel, _of_tower
    model = auto.from_pretrained(directory, dtype=getattr(torch, dtype))
    parts: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        run(model.to(getattr(torch, ARITHMETIC[dtype])).eval(), inputs, parts)
    return parts


def _of_language(model: Any, inputs: CheckInput, parts: dict[str, torch.Tensor]) -> None:
    _keep_layers(model.base_model, parts)
    parts[OUTPUT] = model(use_cache=False, **_tokens(inputs)).logits


def _of_tower(model: Any, inputs: CheckInput, parts: dict[str, torch.Tensor]) -> None:
    model = getattr(model, "vision_model", model)
    _keep_layers(model, parts)
    output = model(images_of(inputs).to(model.dtype))
    pooled = output.pooler_output
    parts[OUTPUT] = output.last_hidden_state if pooled is None else pooled


def _of_llava(model: Any, inputs: CheckInput, parts: dict[str, torch.Tensor]) -> None:
    """Run tower and projector on images, and the language model on tokens."""
    inner = model.base_model
    _keep_layers(getattr(inner.vision_tower, "vision_model", inner.vision_tower), parts, ENCODER)
    _keep(inner.multi_modal_projector, parts, PROJECTOR_PART)
    _keep_layers(inner.language_model, parts, LANGUAGE)
    model.get_image_features(pixel_values=images_of(inputs).to(model.dtype))
    parts[f"{LANGUAGE}{OUTPUT}"] = model(use_cache=False, **_tokens(inputs)).logits


def _tokens(inputs: CheckInput) -> dict[str, torch.Tensor]:
    """Return token ids, mask and positions of rows that are padded on the left."""
    batch = PaddedTokens.of(inputs.rows)
    return {
        "input_ids": batch.ids,
        "attention_mask": (batch.places >= 0).long(),
        "position_ids": batch.places.clamp(min=0),
    }


def _keep_layers(model: Any, parts: dict[str, torch.Tensor], prefix: str = "") -> None:
    """Keep the outputs of the layers and the last norm of a model."""
    modules = dict(model.named_modules())
    layers = next(modules[name] for name in LAYERS if name in modules)

    def keep_input(module: Any, args: Any, kwargs: Any) -> None:
        parts[f"{prefix}{EMBEDDING}"] = args[0] if args else kwargs["hidden_states"]

    layers[0].register_forward_pre_hook(keep_input, with_kwargs=True)
    for number, layer in enumerate(layers):
        _keep(layer, parts, f"{prefix}decoder.layers.{number}")
    last = next(modules[name] for name in FINAL_NORMS if name in modules)
    _keep(last, parts, f"{prefix}{FINAL_NORM}")


def _keep(module: Any, parts: dict[str, torch.Tensor], name: str) -> None:
    """Keep the output of a module."""

    def hook(module: Any, args: Any, output: Any) -> None:
        parts[name] = output[0] if isinstance(output, tuple) else output

    module.register_forward_hook(hook)
