"""Layout and workload of an experiment, for predictions."""

from __future__ import annotations

from mimokit.architecture.parallel_sizes import ParallelSizes, sizes_of
from mimokit.architecture.tokens import geometry_of
from mimokit.config import ExperimentConfig
from mimokit.config.errors import ConfigError, Problem, refuse_if_any
from mimokit.config.runtime import PRECISION_OF_PREDICTIONS
from mimokit.config.world_size import ResolvedWorld, resolve
from mimokit.prediction.frame_pattern import frame_pattern
from mimokit.prediction.layout import Layout, in_first_stage
from mimokit.prediction.memory.states import (
    MASTER_WEIGHT,
    OPTIMIZER,
    inner_state_bytes_of,
    state_bytes_of,
)
from mimokit.prediction.workload import EncoderInput, Workload


def layout_of_config(config: ExperimentConfig, world_size: int | None = None) -> Layout:
    """Return the layout of an experiment, the language module last.

    Args:
        world_size: ranks of the world, or None for as many as the modules need.

    Raises:
        ConfigError: a data_parallel is missing, or a module comes after the language module, which
            predictions do not support.
    """
    model = config.model
    world = resolve(model, config.ranks_of_replica(world_size))
    refuse_if_any(_behind(name) for name in model.decoder_module_names)
    sizes = {name: _sizes(config, world, name) for name in model.encoder_module_names}
    language = _sizes(config, world, model.llm_module_name)
    if model.deployment_mode == "homogeneous":
        sizes = dict.fromkeys(sizes, in_first_stage(language))
    modules = {**sizes, model.llm_module_name: language}
    return Layout(model.deployment_mode, modules, model.llm_module_name)


def _behind(name: str) -> Problem:
    sentence = (
        f"Module '{name}': it comes behind the language module, which runs and is planned but not "
        "predicted or searched yet; leave it out of what is predicted."
    )
    return Problem(name, "topology", None, sentence)


def workload_of_config(config: ExperimentConfig, world_size: int | None = None) -> Workload:
    """Return the workload of one step of an experiment.

    Args:
        world_size: ranks of the world, or None for as many as the modules need.

    Raises:
        ConfigError: a data_parallel is missing, so the number of samples is unknown, or a module
            comes after the language module.
    """
    data, model, strategy = config.data, config.model, config.strategy
    world = resolve(model, config.ranks_of_replica(world_size))
    refuse_if_any(_behind(name) for name in model.decoder_module_names)
    inputs = {
        name: _input(config, name, _micro_batch_samples(config, world))
        for name in model.encoder_module_names
        if name in model.module_architectures
    }
    return Workload(
        seq_length=data.seq_length,
        global_batch_size=_micro_batch_samples(config, world) * data.num_microbatches,
        precision=config.runtime.precision or PRECISION_OF_PREDICTIONS,
        inputs=inputs,
        frozen=model.frozen_modules,
        strategy_bytes=0.0 if strategy is None else state_bytes_of(strategy),
        optimizer_bytes=OPTIMIZER
        if strategy is None
        else MASTER_WEIGHT + inner_state_bytes_of(strategy),
    )


def _input(config: ExperimentConfig, name: str, samples: int) -> EncoderInput:
    """Return the length of an encoder's inputs, their number per sample, and how uneven it is.

    Args:
        config: what its prediction section says goes before what its data section says.
        samples: of a micro-batch over all replicas.
    """
    geometry = geometry_of(config.model.get_architecture(name))
    tokens = config.data.modality_seq_length(name)
    inputs = None if config.prediction is None else config.prediction.inputs
    said = (inputs or {}).get(name)
    pattern = frame_pattern(config, name, samples)
    if said is None and pattern is not None:
        return EncoderInput(geometry.positions, pattern.mean, pattern=pattern)
    if said is None:
        return EncoderInput(length=geometry.positions, count=tokens / geometry.tokens)
    each = said.length * geometry.tokens / geometry.positions
    count = said.count or tokens / each
    given = said.imbalance is not None or said.count is not None
    uneven = None if given else pattern
    if uneven is not None:
        count = uneven.mean
    return EncoderInput(said.length, count, said.imbalance or 1.0, uneven)


def _micro_batch_samples(config: ExperimentConfig, world: ResolvedWorld) -> int:
    return config.data.base_batch_size * _replicas(world, config.model.llm_module_name)


def _sizes(config: ExperimentConfig, world: ResolvedWorld, name: str) -> ParallelSizes:
    replicas = _replicas(world, name)
    samples = _micro_batch_samples(config, world)
    each = samples // replicas if samples % replicas == 0 else samples / replicas
    return sizes_of(config.model.get_parallelism(name), replicas, each)


def _replicas(world: ResolvedWorld, name: str) -> int:
    replicas = world.sizes[name].data_parallel
    if replicas is None:
        sentence = (
            f"Module '{name}': data_parallel is missing, so the samples of a step are not known; "
            "give it a value, or call model.finalize(world_size) first."
        )
        raise ConfigError([Problem(name, "data_parallel", None, sentence)])
    return replicas
