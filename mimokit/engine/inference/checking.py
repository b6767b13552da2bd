"""Compares what a layout computes with an oracle, part by part, on every rank."""

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
from mimokit.planning.weights.check_plan import ARITHMETIC, EMBEDDING, OUTPUT, CheckInput
from mimokit.planning.weights.layout_files import LAYOUT

Parts = Mapping[str, torch.Tensor]
"""Part of a network -> its output; tokens in front of a row's first are padding."""

Receive = Callable[[torch.Tensor], torch.Tensor]
"""Returns the hidden states of the stage before, of the shape of the one given."""

Send = Callable[[torch.Tensor], None]
"""Sends hidden states to the next stage."""


@dataclass(frozen=True)
class PartDifference:
    """What a rank found of one part.

    Attributes:
        scale: largest entry of the oracle's whole part.
    """

    largest: float
    scale: float


def images_of(given: CheckInput) -> torch.Tensor:
    """Return the seeded images of a check."""
    assert given.images is not None
    return torch.randn(given.images, generator=torch.Generator().manual_seed(given.seed))


def parts_on_rank(
    shard: Shard,
    given: CheckInput,
    receive: Receive | None = None,
    send: Send | None = None,
) -> dict[str, torch.Tensor]:
    """Return the outputs of the parts of this rank; of the last, this rank's logits. Collective.

    Args:
        receive: hidden states from the stage before; None on the first.
        send: hidden states to the next stage; None on the last.
    """
    found: dict[str, torch.Tensor] = {}
    watch: Watch = found.__setitem__
    if isinstance(shard, LlavaShard):
        if shard.tower is not None:
            shard.features(images_of(given), watch)
        shard, watch = shard.language, under(LANGUAGE, watch)
    hidden = None
    if receive is not None:
        hidden = receive(torch.empty(_hidden_shape(shard, given), dtype=shard.dtype))
    if isinstance(shard, LanguageShard):
        batch = PaddedTokens.of([list(row) for row in given.rows], shard.device)
        made = shard(batch, hidden=hidden, watch=watch)
    else:
        made = shard(images_of(given), hidden, watch)
    if send is not None:
        send(made)
    return found


def _hidden_shape(shard: LanguageShard | TowerShard, given: CheckInput) -> tuple[int, int, int]:
    width = shard.model.net.hidden
    if isinstance(shard, LanguageShard):
        return len(given.rows), max(map(len, given.rows)), width
    assert given.images is not None
    return given.images[0], shard.model.patches() + shard.model.class_token, width


def compared(
    shard: Shard, given: CheckInput, mine: Parts, oracle: Parts
) -> dict[str, PartDifference]:
    """Return how far the parts of this rank are from those of the oracle.

    Args:
        mine: as `parts_on_rank` returns them.
        oracle: likewise, of one process.
    """
    if isinstance(shard, LlavaShard):
        words = {name: one for name, one in mine.items() if name.startswith(LANGUAGE)}
        pixels = {name: one for name, one in mine.items() if name not in words}
        found = compared(shard.language, given, words, oracle)
        if shard.tower is not None:
            found = compared(shard.tower, replace(given, rows=()), pixels, oracle) | found
        return found
    found = {}
    for name, output in mine.items():
        wanted = oracle[name].to(output.device)
        real = _real(given, wanted)
        scale = float(wanted[real].abs().max())
        if name.endswith(OUTPUT) and isinstance(shard, LanguageShard):
            start = rank_of(shard.group) * output.shape[-1]
            wanted = wanted[..., start : start + output.shape[-1]]
            output = output[..., : wanted.shape[-1]]
        difference = (output.reshape(wanted.shape) - wanted)[real].abs()
        largest = float(difference.max()) if difference.numel() else 0.0
        found[name] = PartDifference(largest, scale)
    return found


def _real(given: CheckInput, part: torch.Tensor) -> torch.Tensor:
    """Return which tokens of a part are not padding."""
    if not given.rows:
        return torch.ones(part.shape[:1], dtype=torch.bool, device=part.device)
    padding = PaddedTokens.of([list(row) for row in given.rows], part.device).padding
    return torch.arange(part.shape[1], device=part.device) >= padding[:, None]


def one_process(
    directory: str | os.PathLike[str], given: CheckInput, dtype: str
) -> dict[str, torch.Tensor]:
    """Return what this process alone computes from the same files."""
    return parts_on_rank(checked_shard(directory, None, dtype), given)


def checked_shard(directory: str | os.PathLike[str], group: Group, dtype: str, **how: Any) -> Shard:
    """Return a shard that computes in the dtype of `ARITHMETIC`; arguments as of `load_shard`."""
    arithmetic = getattr(torch, ARITHMETIC[dtype])
    return load_shard(directory, group, dtype=dtype, arithmetic=arithmetic, **how)


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
