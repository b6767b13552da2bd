"""Between experiments, as mimokit's engine runs them, and layouts, as the predictor knows them."""

from __future__ import annotations

import math
import re
from typing import Any

from mimokit.config import ExperimentConfig, ModuleArchitecture, config_from_mapping
from mimokit.config.problems import ConfigError, Problem
from mimokit.config.worlds import resolve
from mimokit.plan.architecture import EncoderBranch, Model, VisionEncoder
from mimokit.plan.exchange.networks import beyond_networks, encoder_network, language_network
from mimokit.plan.exchange.placement import (
    beyond_ranks,
    check_sizes,
    in_first_stage,
    micro_batches,
    plain_name,
    rank_offsets,
)
from mimokit.plan.prediction import EncoderInput, Layout, Workload
from mimokit.plan.prediction.workload import branches_of, language_of
from mimokit.plan.sizes import ParallelSizes
from mimokit.plan.tokens import audio_geometry, image_geometry


def layout_of_config(config: ExperimentConfig) -> Layout:
    """Return the layout of an experiment, the language module last.

    Raises:
        ConfigError: a data_parallel is left open.
    """
    model = config.model
    sizes = {name: _sizes(config, name) for name in model.encoder_module_names}
    language = _sizes(config, model.llm_module_name)
    if model.deployment_mode == "homogeneous":
        sizes = dict.fromkeys(sizes, in_first_stage(language))
    return Layout(model.deployment_mode, {**sizes, model.llm_module_name: language})


def workload_of_config(config: ExperimentConfig) -> Workload:
    """Return what one step of an experiment computes.

    Raises:
        ConfigError: a data_parallel is left open, so the samples of a step are not known.
    """
    data, model = config.data, config.model
    inputs = {
        name: _input(config, name, model.get_architecture(name))
        for name in model.encoder_module_names
        if name in model.module_architectures
    }
    return Workload(
        seq_length=data.seq_length,
        global_batch=_micro_batch_samples(config) * data.num_microbatches,
        inputs=inputs,
        frozen=model.frozen_modules,
    )


def _input(config: ExperimentConfig, name: str, network: ModuleArchitecture) -> EncoderInput:
    """Return how long an encoder's inputs are, and how many a sample has."""
    geometry = image_geometry(network) if network.modality == "vision" else audio_geometry(network)
    tokens = config.data.modality_seq_length(name)
    return EncoderInput(length=geometry.positions, count=tokens / geometry.tokens)


def _micro_batch_samples(config: ExperimentConfig) -> int:
    return config.data.base_batch_size * int(_replicas(config, config.model.llm_module_name))


def _sizes(config: ExperimentConfig, name: str) -> ParallelSizes:
    module = config.model.get_parallelism(name)
    replicas = _replicas(config, name)
    samples = _micro_batch_samples(config)
    return ParallelSizes(
        tensor=module.tensor_parallel,
        pipeline=module.pipeline_parallel,
        context=module.context_parallel,
        expert=module.expert_parallel,
        data=replicas,
        micro_batch=samples // replicas if samples % replicas == 0 else samples / replicas,
    )


def _replicas(config: ExperimentConfig, name: str) -> int:
    world = resolve(config.model, None)
    replicas = world.sizes[name].data_parallel
    if replicas is None:
        sentence = (
            f"Module '{name}': data_parallel is missing, so the samples of a step are not known; "
            "give it a value, or call model.finalize(world_size) first."
        )
        raise ConfigError([Problem(name, "data_parallel", None, sentence)])
    return replicas


def config_of_layout(
    layout: Layout,
    workload: Workload,
    *,
    model: Model | None = None,
    experiment: ExperimentConfig | None = None,
) -> ExperimentConfig:
    """Return an experiment with a layout.

    Chunks of layers, recomputation and optimizer instances are left out: experiments have no words
    for them. Token ids that hold the place of encoder outputs follow the vocabulary where no
    experiment says them.

    Args:
        layout: the layout.
        workload: what one step computes.
        model: what is laid out; an experiment knows it.
        experiment: keeps all its sections, save for ranks and micro-batches.

    Raises:
        ConfigError: mimokit's modes do not allow the layout, or neither model nor experiment is
            given.
    """
    check_sizes(layout)
    names = {name: plain_name(name, layout) for name in layout.modules}
    ranks = {names[name]: _module(layout, name) for name in layout.modules}
    own = layout.modules[layout.language]
    batch = {"base_batch_size": int(own.micro_batch)}
    batch["num_microbatches"] = micro_batches(layout, workload)
    mode = {"deployment_mode": layout.mode, "module_parallelisms": ranks}
    if experiment is not None:
        content = experiment.to_mapping()
        content["model"] |= mode
        content["data"] |= batch
        content["runtime"].pop("pipeline_schedule", None)
    else:
        content = _sections(layout, workload, model)
        content["model"] |= mode
        content["data"] |= batch
    return config_from_mapping(content)


def to_yaml(
    layout: Layout,
    workload: Workload,
    *,
    model: Model | None = None,
    experiment: ExperimentConfig | None = None,
) -> str:
    """Return `config_of_layout` as YAML, with a comment for everything it cannot say.

    Raises:
        ConfigError: as `config_of_layout` does.
    """
    config = config_of_layout(layout, workload, model=model, experiment=experiment)
    comments = [
        f"# {plain_name(name, layout)}: {dimension} {value} is not part of an experiment\n"
        for name, dimension, value in beyond_ranks(layout)
    ]
    if model is not None and experiment is None:
        own = beyond_networks(language_of(model).net)
        comments += [f"# the language model has {what}; mimokit's engine has not\n" for what in own]
    return "".join(comments) + config.to_yaml()


def _module(layout: Layout, name: str) -> dict[str, int]:
    """Return the ranks of a module; in homogeneous mode all have the language model's."""
    sizes = layout.modules[layout.language if layout.mode == "homogeneous" else name]
    return {
        "tensor_parallel": int(sizes.tensor),
        "pipeline_parallel": int(sizes.pipeline),
        "context_parallel": int(sizes.context),
        "expert_parallel": int(sizes.expert),
        "data_parallel": int(sizes.data),
        "rank_offset": rank_offsets(layout)[name],
    }


def _sections(layout: Layout, workload: Workload, model: Model | None) -> dict[str, Any]:
    """Return the sections of a model that no experiment describes."""
    if model is None:
        sentence = "Export: a layout alone is no experiment; give the model or an experiment."
        raise ConfigError([Problem("export", "model", None, sentence)])
    own, branches = language_of(model), branches_of(model)
    language = plain_name(layout.language, layout)
    tokens = {branch.name: _tokens(branch, workload) for branch in branches}
    networks = {branch.name: encoder_network(branch) for branch in branches}
    networks[language] = language_network(own, workload.seq_length)
    for name in networks:
        networks[name]["frozen"] = name in workload.frozen
    return {
        "name": re.sub(r"[^A-Za-z0-9_.-]+", "-", model.name),
        "model": {
            "llm_module_name": language,
            "special_token_ids": {name: own.vocab + n for n, name in enumerate(tokens)},
            "module_architectures": networks,
        },
        "data": {
            "seq_length": workload.seq_length,
            "image_seq_length": next(iter(tokens.values()), 0),
            "modality_seq_lengths": {name: count for name, count in tokens.items() if count},
            "vocab_size": own.vocab,
            "image_special_token_id": own.vocab,
        },
    }


def _tokens(branch: EncoderBranch, workload: Workload) -> int:
    """Return the tokens per sample that an encoder's outputs become."""
    seen, encoder = workload.input_of(branch), branch.encoder
    merge, extra = 1, 0
    if isinstance(encoder, VisionEncoder):
        merge, extra = encoder.merge**2, int(encoder.class_token)
    return math.ceil(seen.count * (seen.length - extra) / merge)
