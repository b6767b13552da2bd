"""The same model on the same global batches in ONE process, whose results every layout must match.

It uses as little of mimokit as possible: Megatron's `MimoModel.forward` on the whole micro-batch,
torch's own cross entropy, gradients in `.grad`, torch's AdamW. No data parallel wrapper, no
bridge, no batch slicing, no schedule, no gradient buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from mimokit.config import (
    ExperimentConfig,
    ModuleArchitecture,
    RuntimeConfig,
)
from mimokit.config.user_code import NO_CODE, OwnLoss, UserCode
from mimokit.engine.data.batch import ITEMS, Batch, targets_of, to_device
from mimokit.engine.data.iterators import iterate_shared_batches
from mimokit.engine.data.sources import DataSource, data_of
from mimokit.engine.device import rank_device
from mimokit.engine.megatron import MimoModel, ProcessGroupCollection
from mimokit.engine.models.decoder import TextDecoder, text_decoder_spec
from mimokit.engine.models.language import hidden_states_of
from mimokit.engine.models.provider import inject_process_groups
from mimokit.engine.models.rng import module_seed
from mimokit.engine.models.specs import multimodal_provider
from mimokit.engine.parallel.loss import sum_and_tokens
from mimokit.engine.parallel.optimizer import learning_rate_scheduler
from mimokit.planning.ranks import RankMap
from mimokit.planning.types import LayoutPlan

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class OracleStep:
    """One optimizer step of the oracle.

    Attributes:
        loss: mean over the unmasked tokens of the step, including those of modules behind the
            language model.
        gradients: module -> parameter -> gradient of that mean, after clipping; a frozen module
            has none.
        weights: module -> parameter -> weight after the step.
    """

    loss: float
    gradients: dict[str, Tensors]
    weights: dict[str, Tensors]


@dataclass(frozen=True)
class _Whole:
    """The whole model.

    Attributes:
        mimo: encoders and language model.
        decoders: the modules behind the language model.
        language: the language model's name.
        loss_func: of the user, if there is one.
    """

    mimo: MimoModel
    decoders: dict[str, TextDecoder]
    language: str
    loss_func: OwnLoss | None

    def modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        yield from self.mimo.modality_submodules.items()
        yield self.language, self.mimo.language_model
        yield from self.decoders.items()

    def trained(self) -> list[torch.nn.Parameter]:
        return [p for _, module in self.modules() for p in module.parameters() if p.requires_grad]


def run_oracle(
    plan: LayoutPlan,
    config: ExperimentConfig,
    source: DataSource,
    steps: int,
    decoders: Mapping[str, ModuleArchitecture] | None = None,
    code: UserCode = NO_CODE,
) -> list[OracleStep]:
    """Train in a world of one rank.

    Args:
        plan: plan of the single-rank layout with the global batch of the layout to verify.
        config: config of the same: encoders and language model.
        source: returns the data.
        steps: number of optimizer steps.
        decoders: the modules behind the language model.
        code: of the user.
    """
    model = _build(plan, config, decoders or {}, code)
    data = data_of(source, config)
    iterator = iterate_shared_batches(
        plan, config.data, 0, data.train, data.collate_fn, config.runtime.seed
    )
    optimizer = torch.optim.AdamW(
        model.trained(),
        lr=config.runtime.learning_rate,
        weight_decay=config.runtime.weight_decay,
        eps=config.runtime.adam_epsilon,
    )
    scheduler = learning_rate_scheduler(optimizer, config.runtime)
    taken = []
    for _ in range(steps):
        taken.append(_step(model, optimizer, iterator, plan, config.runtime))
        scheduler.step()
    return taken


def _build(
    plan: LayoutPlan,
    config: ExperimentConfig,
    decoders: Mapping[str, ModuleArchitecture],
    code: UserCode,
) -> _Whole:
    seed, language = config.runtime.seed, config.model.llm_module_name
    provided = multimodal_provider(config.model, plan, seed, code).provide(plan, wrap=False)
    assert provided.model is not None
    groups = provided.pg_collections[language]  # all of this one rank
    width = config.model.get_architecture(language)
    behind = {
        name: _decoder(network, width, plan.modules[language], module_seed(seed, name), groups)
        for name, network in decoders.items()
    }
    return _Whole(provided.model, behind, language, code.loss_func)


def _decoder(
    network: ModuleArchitecture,
    language: ModuleArchitecture,
    sizes: RankMap,
    seed: int,
    groups: ProcessGroupCollection,
) -> TextDecoder:
    spec = text_decoder_spec(network, language, sizes, seed)
    torch.manual_seed(seed)
    decoder = TextDecoder(**inject_process_groups(spec, groups).params)
    decoder.to(rank_device())
    decoder.requires_grad_(not network.is_frozen)
    return decoder


def _step(
    model: _Whole,
    optimizer: torch.optim.AdamW,
    iterator: Iterator[Batch],
    plan: LayoutPlan,
    runtime: RuntimeConfig,
) -> OracleStep:
    optimizer.zero_grad()
    loss_sum, tokens = 0.0, 0.0
    for _ in range(plan.batch.num_microbatches):
        batch = to_device(next(iterator), rank_device())
        loss, counted = _loss_sum(model, batch)
        if loss.requires_grad:  # False where all modules of this micro-batch are frozen
            loss.backward()  # type: ignore[no-untyped-call]
        loss_sum += float(loss.detach())
        tokens += counted
    for parameter in model.trained():
        if parameter.grad is None:  # an encoder without inputs in any sample: its weights decay
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad /= max(tokens, 1.0)
    if runtime.clip_grad > 0:
        torch.nn.utils.clip_grad_norm_(model.trained(), runtime.clip_grad)
    optimizer.step()
    return OracleStep(
        loss=loss_sum / max(tokens, 1.0),
        gradients={name: _gradients(module) for name, module in model.modules()},
        weights={name: _weights(module) for name, module in model.modules()},
    )


def _loss_sum(model: _Whole, batch: Batch) -> tuple[torch.Tensor, float]:
    """Return the sum of all losses and their number of tokens."""
    tokens = batch["input_ids"].shape[1]
    mask = torch.ones(tokens, tokens, dtype=torch.bool, device=rank_device()).triu(1)[None, None]
    with hidden_states_of(model.mimo.language_model) as hidden:
        logits, _ = model.mimo(
            input_ids=batch["input_ids"],
            position_ids=batch["position_ids"],
            attention_mask=mask,
            modality_inputs={
                name: inputs
                for name, inputs in batch["modality_inputs"].items()
                if int(inputs[ITEMS].sum())
            },
        )
    losses, mask_of_loss = _losses(logits, batch["labels"]), batch["loss_mask"]
    if model.loss_func is None:
        total, counted = (losses * mask_of_loss).sum(), float(mask_of_loss.sum())
    else:
        total, number = sum_and_tokens(model.loss_func(mask_of_loss, losses))
        counted = float(number)
    for name, decoder in model.decoders.items():
        labels, loss_mask = targets_of(batch, name)
        total = total + (_losses(decoder(hidden[-1], mask), labels) * loss_mask).sum()
        counted += float(loss_mask.sum())
    return total, counted


def _losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of every token, [samples, tokens]."""
    return torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), reduction="none"
    ).reshape(labels.shape)


def _gradients(module: torch.nn.Module) -> Tensors:
    return {
        name: p.grad.cpu().numpy().copy()
        for name, p in module.named_parameters()
        if p.grad is not None
    }


def _weights(module: torch.nn.Module) -> Tensors:
    return {name: p.detach().cpu().numpy().copy() for name, p in module.named_parameters()}
