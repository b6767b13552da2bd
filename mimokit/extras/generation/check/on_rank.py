"""What the network that trains computes from weights, part by part, on a rank."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from mimokit.architecture.huggingface import ENCODER, IMAGES, LANGUAGE
from mimokit.config import ExperimentConfig
from mimokit.engine.device import rank_device
from mimokit.engine.models import causal_mask, multimodal_provider
from mimokit.extras.generation.check.inputs import (
    ARITHMETIC,
    FINAL_NORM,
    OUTPUT,
    PROJECTOR_PART,
    CheckInput,
)
from mimokit.extras.generation.check.parts import Parts, record, record_layers
from mimokit.planning.types import LayoutPlan

ChangeShard = Callable[[int, Mapping[str, torch.Tensor]], object]
"""Is given a rank and its parameters by name."""


def parts_on_rank(
    plan: LayoutPlan,
    config: ExperimentConfig,
    inputs: CheckInput,
    dtype: str,
    change: ChangeShard | None = None,
) -> Parts:
    """Return what the parts of the network make; the logits are those of this rank. Collective."""
    model: Any = multimodal_provider(config.model, plan, seed=0).provide(plan, wrap=False).model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(getattr(torch, dtype)))
        if change is not None:
            change(dist.get_rank(), {inputs.name(n): p for n, p in model.named_parameters()})
        model.to(getattr(torch, ARITHMETIC[dtype])).eval()
        parts = _recorded(model, inputs)
        if inputs.images is not None:
            encoder = model.modality_submodules[IMAGES]
            images = inputs.pixels().to(next(encoder.parameters()))
            encoder(encoder_inputs={name: {"pixel_values": images} for name in encoder.encoders})
        if inputs.rows:
            ids = inputs.ids().to(rank_device())
            model.language_model(ids, None, causal_mask(ids.shape[1], ids.device))
    return {name: part.detach().cpu() for name, part in parts.items()}


def _recorded(model: torch.nn.Module, inputs: CheckInput) -> Parts:
    parts, modules = Parts(), dict(model.named_modules())

    def record_stack(prefix: str) -> None:
        layers = modules[f"{prefix}decoder.layers"].children()
        record_layers(parts, inputs.name(prefix), layers, _batch_first)

    if inputs.images is not None:
        record_stack(ENCODER)
        if inputs.rows:
            record(parts, PROJECTOR_PART, modules[PROJECTOR_PART])
        else:
            record(parts, OUTPUT, modules[ENCODER.removesuffix(".")])
    if inputs.rows:
        record_stack(LANGUAGE)
        for name in (f"{LANGUAGE}{FINAL_NORM}", f"{LANGUAGE}{OUTPUT}"):
            record(parts, inputs.name(name), modules[name], _batch_first)
    return parts


def _batch_first(hidden: torch.Tensor) -> torch.Tensor:
    return hidden.transpose(0, 1)
