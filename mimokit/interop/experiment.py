"""Layouts as experiments, without loss of anything that a prediction depends on.

A new field of `ParallelSizes`, `Workload` or a model description that experiments cannot state is
refused here, instead of changing a prediction silently.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from mimokit.architecture import EncoderBranch, Model, MultimodalModel, VisionEncoder
from mimokit.architecture.from_config import model_of_config
from mimokit.architecture.modules import Module
from mimokit.config import ExperimentConfig
from mimokit.config.errors import ConfigError, Problem, refuse_if_any
from mimokit.config.runtime import PRECISION_OF_RUNS, THREE_PHASE
from mimokit.config_files import config_from_mapping
from mimokit.interop.size_fields import other_fields, rank_fields
from mimokit.prediction import EncoderInput, Layout, Workload
from mimokit.prediction.layout import connected, micro_batches, plain_name, rank_offsets
from mimokit.prediction.task import layout_of_config, workload_of_config
from mimokit.prediction.validity import check_counts
from mimokit.prediction.workload import (
    branches_of,
    decoders_of,
    language_of,
    modules_of,
    topology_of,
)


def config_of_layout(
    layout: Layout,
    workload: Workload,
    *,
    model: Model | None = None,
    experiment: ExperimentConfig | None = None,
    supposed: Mapping[str, Any] | None = None,
) -> ExperimentConfig:
    """Return an experiment with a layout. Its predictions are the same to the last digit.

    Without an experiment, the placeholder token ids of encoder outputs follow the vocabulary.

    Args:
        supposed: gpu, price_per_gpu_hour and software of the `PredictionConfig`; None keeps what
            the experiment states.

    Raises:
        ConfigError: mimokit's modes do not allow the layout, an experiment cannot state all of it,
            or neither model nor experiment is given.
    """
    check_counts(layout)
    if layout.encoder_microbatches is not None:
        workload = replace(workload, encoder_microbatches=layout.encoder_microbatches)
    if experiment is not None:
        content = experiment.to_mapping()
        content["runtime"].pop("pipeline_schedule", None)
        described: Model = model_of_config(experiment.model)
    else:
        described = _given(model)
        content = _sections(connected(layout, described), workload, described)
    content["model"] |= _ranks(layout, described)
    content["data"] |= {
        "base_batch_size": int(layout.modules[layout.language].micro_batch),
        "num_microbatches": micro_batches(layout, workload),
    }
    _set_workload(content, layout, workload)
    _set_schedule(content, layout)
    _suppose(content, supposed or {})
    config = _with_inputs(content, layout, workload, described)
    refuse_if_any(lost_of_layout(config, layout))
    refuse_if_any(lost_of_workload(config, layout, workload, described))
    refuse_if_any(lost_of_model(config, described))
    return config


def to_yaml(
    layout: Layout,
    workload: Workload,
    *,
    model: Model | None = None,
    experiment: ExperimentConfig | None = None,
    supposed: Mapping[str, Any] | None = None,
) -> str:
    """Return `config_of_layout` as YAML."""
    return config_of_layout(
        layout, workload, model=model, experiment=experiment, supposed=supposed
    ).to_yaml()


def _given(model: Model | None) -> Model:
    if model is None:
        sentence = "Export: a layout alone is not an experiment; give the model or an experiment."
        raise ConfigError([Problem("export", "model", None, sentence)])
    return model


def _ranks(layout: Layout, model: Model) -> dict[str, Any]:
    """Return deployment mode and sizes; in homogeneous mode those of the language model."""
    layers = {plain_name(module.name, layout): module.net.layers for module in modules_of(model)}
    language_sizes = layout.modules[layout.language]
    offsets, written = rank_offsets(layout), {}
    for name, sizes in layout.modules.items():
        plain = plain_name(name, layout)
        language = name == layout.language
        shared = layout.mode == "homogeneous" and not language
        count = layers.get(plain, language_of(model).net.layers if language else None)
        written[plain] = {
            **rank_fields(language_sizes if shared else sizes),
            "rank_offset": offsets[name],
            **({} if shared else other_fields(sizes, count)),
        }
    return {"deployment_mode": layout.mode, "module_parallelisms": written}


def _sections(layout: Layout, workload: Workload, model: Model) -> dict[str, Any]:
    language_part, branches, graph = language_of(model), branches_of(model), topology_of(model)
    language = plain_name(layout.language, layout)
    tokens = {
        branch.name: _tokens(branch, workload)
        for branch in branches
        if language_part.name in graph[branch.name]
    }
    networks = {branch.name: branch.network.section() for branch in branches}
    for decoder in decoders_of(model):
        networks[decoder.name] = decoder.network.section() | {"seq_length": workload.seq_length}
    tensor = int(layout.modules[layout.language].tensor)
    networks[language] = language_part.section(workload.seq_length, tensor)
    return {
        "name": re.sub(r"[^A-Za-z0-9_.-]+", "-", model.name),
        "model": {
            "llm_module_name": language,
            "special_token_ids": {name: language_part.vocab + n for n, name in enumerate(tokens)},
            "module_architectures": networks,
            **_topology(layout),
        },
        "data": {
            "seq_length": workload.seq_length,
            "image_seq_length": next(iter(tokens.values()), 0),
            "modality_seq_lengths": {name: count for name, count in tokens.items() if count},
            "vocab_size": language_part.vocab,
            "image_special_token_id": language_part.vocab,
        },
        "runtime": {},
    }


def _topology(layout: Layout) -> dict[str, Any]:
    if not layout.feeds:
        return {}
    plain = {name: plain_name(name, layout) for name in layout.modules}
    graph = {plain[name]: [plain[to] for to in fed] for name, fed in layout.topology.items()}
    return {"topology": graph}


def _tokens(branch: EncoderBranch, workload: Workload) -> int:
    """Return the tokens per sample that an encoder's outputs become, of one image at least."""
    seen, encoder = workload.input_of(branch), branch.encoder
    merge, extra, least = 1, 0, 0
    if isinstance(encoder, VisionEncoder):
        merge, extra = encoder.images.merge_size**2, encoder.images.extra_positions
        least = encoder.tokens()
    return max(least, math.ceil(seen.count * (seen.length - extra) / merge))


def _set_workload(content: dict[str, Any], layout: Layout, workload: Workload) -> None:
    networks, language = (
        content["model"]["module_architectures"],
        plain_name(layout.language, layout),
    )
    content["data"]["seq_length"] = workload.seq_length
    section = networks[language]
    section["seq_length"] = max(section["seq_length"], workload.seq_length)
    frozen = {plain_name(name, layout) for name in workload.frozen}
    for name, network in networks.items():
        network["frozen"] = name in frozen
    for field in ("precision", "encoder_microbatches", "pipeline_order"):
        content["runtime"].pop(field, None)
    if workload.pipeline_order is not None:
        content["runtime"]["pipeline_order"] = workload.pipeline_order
    if layout.mode == "colocated" and workload.encoder_microbatches is not None:
        content["runtime"]["encoder_microbatches"] = workload.encoder_microbatches
    if workload.precision != PRECISION_OF_RUNS:
        content["runtime"]["precision"] = workload.precision


def _set_schedule(content: dict[str, Any], layout: Layout) -> None:
    staged = layout.modules[layout.language].pipeline > 1
    if layout.mode == "colocated" and staged:
        content["runtime"]["pipeline_schedule"] = THREE_PHASE


def _suppose(content: dict[str, Any], supposed: Mapping[str, Any]) -> None:
    said = {name: value for name, value in supposed.items() if value is not None}
    section = {**content.pop("prediction", {}), **said}
    section.pop("inputs", None)
    if section:
        content["prediction"] = section


def _with_inputs(
    content: dict[str, Any], layout: Layout, workload: Workload, model: Model
) -> ExperimentConfig:
    config = config_from_mapping(content)
    derived = workload_of_config(config).inputs
    inputs = {}
    for branch in branches_of(model):
        name, seen = plain_name(branch.name, layout), workload.input_of(branch)
        if derived[name] != seen:
            inputs[name] = _input_fields(seen)
    if not inputs:
        return config
    content["prediction"] = {**content.get("prediction", {}), "inputs": inputs}
    return config_from_mapping(content)


def _input_fields(seen: EncoderInput) -> dict[str, Any]:
    even = {} if seen.imbalance == 1 else {"imbalance": seen.imbalance}
    return {"length": seen.length, "count": seen.count, **even}


STEP = "step"


def lost_of_layout(config: ExperimentConfig, layout: Layout) -> Iterator[Problem]:
    """Yield the sizes that change when a layout is read back."""
    back = layout_of_config(config).modules
    for name, sizes in layout.modules.items():
        plain = plain_name(name, layout)
        for field, value, read in _differences(sizes, back[plain]):
            yield _lost(plain, field, value, read)


def lost_of_workload(
    config: ExperimentConfig, layout: Layout, workload: Workload, model: Model
) -> Iterator[Problem]:
    """Yield what changes in a step when it is read back."""
    back = workload_of_config(config)
    for field in ("seq_length", "global_batch_size", "precision"):
        value, read = getattr(workload, field), getattr(back, field)
        if value != read:
            yield _lost(STEP, field, value, read)
    frozen = {plain_name(name, layout) for name in workload.frozen}
    if frozen != back.frozen:
        yield _lost(STEP, "frozen", sorted(frozen), sorted(back.frozen))
    for branch in branches_of(model):
        plain = plain_name(branch.name, layout)
        for field, value, read in _differences(workload.input_of(branch), back.inputs[plain]):
            yield _lost(plain, field, value, read)


def lost_of_model(config: ExperimentConfig, model: Model) -> Iterator[Problem]:
    """Yield what changes in the networks when they are read back."""
    back = model_of_config(config.model)
    for field, value, seen in _differences(_plain(language_of(model)), _plain(back.language)):
        yield _lost(back.language.name, field, value, seen)
    behind = model.decoders if isinstance(model, MultimodalModel) else ()
    others: tuple[Module, ...] = (*branches_of(model), *behind)
    read: tuple[Module, ...] = (*back.branches, *back.decoders)
    for module, other in zip(others, read, strict=True):
        for field, value, seen in _differences(_plain(module), _plain(other)):
            yield _lost(other.name, field, value, seen)


def _plain(module: Module) -> Module:
    """Return a module without its names."""
    if not isinstance(module, EncoderBranch):
        return replace(module, name="")
    return replace(module, name="", encoder=replace(module.encoder, name=""))


def _differences(written: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    for field in (field for field in fields(written) if field.compare):
        value, read = getattr(written, field.name), getattr(other, field.name)
        if is_dataclass(value) and type(value) is type(read):
            yield from _differences(value, read)
        elif value != read:
            yield field.name, value, read


def _lost(module: str, field: str, value: object, kept: object) -> Problem:
    begin = "Step" if module == STEP else f"Module '{module}'"
    return Problem(
        module,
        field,
        value,
        f"{begin}: {field} is {value}, which an experiment of its layout cannot state (it "
        f"would be {kept}); change it, or export another form.",
    )
