"""Layout and samples of an experiment, as the predictor knows them."""

from __future__ import annotations

from mimokit.architecture.parallel_sizes import ParallelSizes, sizes_of
from mimokit.architecture.tokens import geometry_of
from mimokit.config import ExperimentConfig, ModuleArchitecture
from mimokit.config.errors import ConfigError, Problem, refuse_if_any
from mimokit.config.world_size import resolve
from mimokit.prediction import EncoderInput, Layout, Workload
from mimokit.prediction.placement import in_first_stage

PRECISION = "bf16"
"""Of matrix products, where an experiment does not say."""


def layout_of_config(config: ExperimentConfig) -> Layout:
    """Return the layout of an experiment, the language module last.

    Raises:
        ConfigError: a data_parallel is left open, or a module comes behind the language module,
            which predictions do not know.
    """
    model = config.model
    refuse_if_any(_behind(name) for name in model.decoder_module_names)
    sizes = {name: _sizes(config, name) for name in model.encoder_module_names}
    language = _sizes(config, model.llm_module_name)
    if model.deployment_mode == "homogeneous":
        sizes = dict.fromkeys(sizes, in_first_stage(language))
    return Layout(model.deployment_mode, {**sizes, model.llm_module_name: language})


def _behind(name: str) -> Problem:
    sentence = (
        f"Module '{name}': it comes behind the language module, which runs and is planned but not "
        "predicted or searched yet; leave it out of what is predicted."
    )
    return Problem(name, "topology", None, sentence)


def workload_of_config(config: ExperimentConfig) -> Workload:
    """Return what one step of an experiment computes.

    Raises:
        ConfigError: a data_parallel is left open, so the samples of a step are not known, or a
            module comes behind the language module.
    """
    data, model = config.data, config.model
    refuse_if_any(_behind(name) for name in model.decoder_module_names)
    inputs = {
        name: _input(config, name, model.get_architecture(name))
        for name in model.encoder_module_names
        if name in model.module_architectures
    }
    return Workload(
        seq_length=data.seq_length,
        global_batch_size=_micro_batch_samples(config) * data.num_microbatches,
        precision=config.runtime.precision or PRECISION,
        inputs=inputs,
        frozen=model.frozen_modules,
    )


def _input(config: ExperimentConfig, name: str, network: ModuleArchitecture) -> EncoderInput:
    """Return how long an encoder's inputs are, and how many a sample has."""
    geometry = geometry_of(network)
    tokens = config.data.modality_seq_length(name)
    inputs = None if config.prediction is None else config.prediction.inputs
    said = (inputs or {}).get(name)
    if said is None:
        return EncoderInput(length=geometry.positions, count=tokens / geometry.tokens)
    each = said.length * geometry.tokens / geometry.positions
    count = said.count or tokens / each
    return EncoderInput(said.length, count, said.imbalance or 1.0)


def _micro_batch_samples(config: ExperimentConfig) -> int:
    return config.data.base_batch_size * int(_replicas(config, config.model.llm_module_name))


def _sizes(config: ExperimentConfig, name: str) -> ParallelSizes:
    replicas = _replicas(config, name)
    samples = _micro_batch_samples(config)
    each = samples // replicas if samples % replicas == 0 else samples / replicas
    return sizes_of(config.model.get_parallelism(name), replicas, each)


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
