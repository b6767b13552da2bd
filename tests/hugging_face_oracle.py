"""What a model of Hugging Face computes of the batches of a run, and a layout's logits."""

import copy
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import mimokit
from mimokit.config import ExperimentConfig
from mimokit.experiment import Oracle, verify
from tests.rank_steps import run_step, state_of


def of_hugging_face(
    oracle: Oracle,
    model: Any,
    logits_of: Callable[[Any, Any], Any],
    steps: int,
    further_loss_of: Callable[[Any, Any], Any] = lambda model, batch: 0.0,
) -> tuple[Oracle, Any]:
    """Return what Hugging Face's model computes in this process, and its first logits.

    Args:
        oracle: says the batches and the optimizer; its results are replaced.
        model: of transformers; it is trained.
        logits_of: model and batch -> logits [samples, tokens, vocabulary].
        steps: optimizer steps.
        further_loss_of: model and batch -> the sum over tokens of what is minimized besides.

    Returns:
        An oracle for `verify`; logits.
    """
    import torch
    from torch.nn.functional import cross_entropy

    from mimokit.engine.verify.steps import OracleStep

    runtime = oracle.config.runtime
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=runtime.learning_rate,
        weight_decay=runtime.weight_decay,
        eps=runtime.adam_epsilon,
    )
    taken, first = [], None
    for batch in _batches(oracle, steps):
        logits = logits_of(model, batch)
        first = logits.detach() if first is None else first
        losses = cross_entropy(
            logits.flatten(0, 1), batch["labels"].flatten(), reduction="none"
        ).view_as(batch["labels"])
        count = batch["loss_mask"].sum()
        loss = (losses * batch["loss_mask"]).sum() / count
        optimizer.zero_grad()
        (loss + further_loss_of(model, batch) / count).backward()
        if runtime.clip_grad > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), runtime.clip_grad)
        gradients = _by_megatron(oracle, model, lambda one: one.grad)
        optimizer.step()
        weights = _by_megatron(oracle, model, lambda one: one.data)
        taken.append(OracleStep(loss.item(), gradients, weights, runtime.adam_epsilon))
    return replace(oracle, replicas=(tuple(taken),)), first


def _batches(oracle: Oracle, steps: int) -> Iterator[Any]:
    """Yield the batches of one process."""
    from mimokit.engine.data.iterators import iterate_batches
    from mimokit.engine.data.sources import data_of, default_data

    config = oracle.config
    data = data_of(default_data, config)
    batches = iterate_batches(
        mimokit.plan(config), config.data, 0, data.train, data.collate_fn, config.runtime.seed
    )
    for _ in range(steps):
        yield next(batches)


def _by_megatron(oracle: Oracle, model: Any, values: Callable[[Any], Any]) -> Any:
    """Return tensors of Hugging Face's parameters by module and Megatron's name.

    A gradient is laid out as its weight is, so it is read as one.
    """
    import torch

    from mimokit.engine.weights.files import opened
    from mimokit.engine.weights.shard import read_parameter
    from mimokit.planning.weights.modules import module_planner

    shown = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, own in zip(shown.parameters(), model.parameters(), strict=True):
            value = values(own)
            parameter.copy_(torch.zeros_like(own) if value is None else value)
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        shown.save_pretrained(folder)
        with opened(folder) as (checkpoint, source):
            for name, network in oracle.config.model.module_architectures.items():
                planner = module_planner(
                    checkpoint,
                    network,
                    language=name == oracle.config.model.llm_module_name,
                    tensor_parallel=1,
                    pipeline_parallel=1,
                )
                planned = planner.rank(0).parameters.items()
                found[name] = {key: read_parameter(one, source).numpy() for key, one in planned}
    return found


def logits_of_layout(cluster: Any, config: ExperimentConfig) -> Any:
    """Return the logits of a layout in its first step: [samples, tokens, vocabulary]."""
    import torch

    plan = mimokit.plan(config)
    parts = [one for one in cluster.run(_logits, plan, config, world_size=plan.world_size) if one]
    rows = [
        torch.cat(
            [part for data, _, part in sorted(parts, key=lambda one: one[:2]) if data == at], 2
        )
        for at in sorted({data for data, _, _ in parts})
    ]
    return torch.cat(rows, dim=1)[..., : config.data.vocab_size].transpose(0, 1)


def _logits(plan: Any, config: ExperimentConfig) -> Any:
    """Return (data rank, tensor rank, logits) of one step of training; None on other ranks."""
    import torch

    found: list[Any] = []
    with state_of(plan, config) as state:
        wrapped = state.model.modules().get("language_module")
        if wrapped is not None and wrapped.module.post_process:
            wrapped.module.output_layer.register_forward_hook(
                lambda layer, given, made: found.append(made[0].detach().clone())
            )
        run_step(state)
        if not found:
            return None
        groups = state.model.pg_collections["language_module"]
        return groups.dp.rank(), groups.tp.rank(), torch.cat(found, dim=1)


def assert_is_hugging_face(
    cluster: Any, config: ExperimentConfig, oracle: Oracle, expected: Any, steps: int
) -> None:
    """Compare the logits and the training of a layout with those of transformers.

    Args:
        oracle: trained by transformers.
        expected: its logits.
    """
    logits = logits_of_layout(cluster, config)
    assert float((logits - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    report = verify(cluster, config, steps=steps, oracle=oracle)
    assert report.data.startswith("digits")
    assert report.passed, report.verdict
