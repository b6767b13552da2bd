"""The same model on the same global batches in ONE process: what every layout must compute.

It uses as little of mimokit as can be: Megatron's `MimoModel.forward` on the whole global batch,
torch's own cross entropy, gradients in `.grad`, torch's AdamW. No data parallel wrapper, no
bridge, no batch slicing, no schedule, no gradient buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from mimokit.config import ExperimentConfig
from mimokit.engine.data.batch import ITEMS, Batch, to_device
from mimokit.engine.data.iterators import get_data_iterator_colocated
from mimokit.engine.data.sources import DataSource
from mimokit.engine.device import rank_device
from mimokit.engine.megatron import MimoModel
from mimokit.engine.mimo_model import vision_language_provider
from mimokit.engine.optimizer import learning_rate_at, set_learning_rate
from mimokit.plan.types import LayoutPlan

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class OracleStep:
    """One optimizer step of the oracle.

    Attributes:
        loss: mean over the unmasked tokens of the step.
        gradients: module -> parameter -> gradient of that mean, after clipping; a frozen module
            has none.
        weights: module -> parameter -> weight after the step.
    """

    loss: float
    gradients: dict[str, Tensors]
    weights: dict[str, Tensors]


def run_oracle(
    plan: LayoutPlan, config: ExperimentConfig, source: DataSource, steps: int
) -> list[OracleStep]:
    """Train in a world of one rank.

    Args:
        plan: of the single-rank layout with the global batch of the layout to be proven.
        config: of the same.
        source: gives the data.
        steps: optimizer steps.
    """
    model = vision_language_provider(config.model, config.runtime.seed).provide(plan, wrap=False)
    assert model.model is not None
    data = source(config)
    iterator = get_data_iterator_colocated(
        plan, config.data, 0, data.train, data.collate_fn, config.runtime.seed
    )
    optimizer = torch.optim.AdamW(
        _trained(model.model),
        lr=config.runtime.learning_rate,
        weight_decay=config.runtime.weight_decay,
        eps=config.runtime.adam_epsilon,
    )
    language = config.model.llm_module_name
    taken = []
    for iteration in range(steps):
        set_learning_rate(optimizer, learning_rate_at(config.runtime, iteration))
        taken.append(_step(model.model, optimizer, iterator, config, language))
    return taken


def _step(
    model: MimoModel,
    optimizer: torch.optim.AdamW,
    iterator: Iterator[Batch],
    config: ExperimentConfig,
    language: str,
) -> OracleStep:
    optimizer.zero_grad()
    loss_sum, tokens = 0.0, 0.0
    for _ in range(config.data.num_microbatches):
        batch = to_device(next(iterator), rank_device())
        loss = _loss_sum(model, batch)
        if loss.requires_grad:  # not so where all that this micro-batch reaches is frozen
            loss.backward()  # type: ignore[no-untyped-call]
        loss_sum += float(loss.detach())
        tokens += float(batch["loss_mask"].sum())
    for parameter in _trained(model):
        if parameter.grad is None:  # an encoder of which no sample had inputs: its weights decay
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad /= max(tokens, 1.0)
    if config.runtime.clip_grad > 0:
        torch.nn.utils.clip_grad_norm_(_trained(model), config.runtime.clip_grad)
    optimizer.step()
    return OracleStep(
        loss=loss_sum / max(tokens, 1.0),
        gradients={name: _gradients(module) for name, module in _modules(model, language)},
        weights={name: _weights(module) for name, module in _modules(model, language)},
    )


def _loss_sum(model: MimoModel, batch: Batch) -> torch.Tensor:
    tokens = batch["input_ids"].shape[1]
    mask = torch.ones(tokens, tokens, dtype=torch.bool, device=rank_device()).triu(1)[None, None]
    logits, _ = model(
        input_ids=batch["input_ids"],
        position_ids=batch["position_ids"],
        attention_mask=mask,
        modality_inputs={
            name: inputs
            for name, inputs in batch["modality_inputs"].items()
            if int(inputs[ITEMS].sum())
        },
    )
    losses = torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), batch["labels"].flatten(), reduction="none"
    )
    loss_mask: torch.Tensor = batch["loss_mask"]
    return (losses * loss_mask.flatten()).sum()


def _modules(model: MimoModel, language: str) -> Iterator[tuple[str, torch.nn.Module]]:
    yield from model.modality_submodules.items()
    yield language, model.language_model


def _trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _gradients(module: torch.nn.Module) -> Tensors:
    return {
        name: p.grad.cpu().numpy().copy()
        for name, p in module.named_parameters()
        if p.grad is not None
    }


def _weights(module: torch.nn.Module) -> Tensors:
    return {name: p.detach().cpu().numpy().copy() for name, p in module.named_parameters()}
