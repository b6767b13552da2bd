"""The input of a prediction, from an experiment or from a model with a layout."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from mimokit.architecture import Model
from mimokit.architecture.from_config import feeds_of_config, model_of_config
from mimokit.architecture.tokens import geometry_of
from mimokit.config import ExperimentConfig, MimoParallelismConfig, PredictionConfig
from mimokit.config.errors import ConfigError, Problem, refuse_if_any
from mimokit.config.graph import topological_order
from mimokit.config.runtime import PRECISION_OF_RUNS
from mimokit.config.sizes import ParallelSizes, sizes_of
from mimokit.config.world_size import ResolvedWorld, resolve
from mimokit.planning.layout import ConfigSource, checked_config, plan_checked
from mimokit.planning.replicas import ReplicaPlan
from mimokit.prediction.hardware import Hardware, load_hardware
from mimokit.prediction.layout import Layout, connected
from mimokit.prediction.memory.states import (
    MASTER_WEIGHT,
    OPTIMIZER,
    gathered_bytes_of,
    inner_state_bytes_of,
    state_bytes_of,
)
from mimokit.prediction.step_time import Software, System, load_software
from mimokit.prediction.step_time.recipe import recipe_of
from mimokit.prediction.step_time.software import MIMOKIT
from mimokit.prediction.validity import check_calibrated, check_price
from mimokit.prediction.workload import EncoderInput, Workload, frame_pattern, language_of

HardwareSource = str | os.PathLike[str] | Hardware
"""A GPU's name, a hardware file, or hardware."""


@dataclass(frozen=True)
class PredictionTask:
    """Everything that a prediction depends on.

    Attributes:
        layout: its modules feed each other as those of the model do.
        replicas: of an experiment with a strategy between links that it describes.
    """

    model: Model
    layout: Layout
    workload: Workload
    system: System
    price_per_gpu_hour: float | None = None
    replicas: ReplicaPlan | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "layout", connected(self.layout, self.model))


def task_of(
    model: Model | ConfigSource,
    layout: Layout | None = None,
    workload: Workload | None = None,
    hardware: HardwareSource | None = None,
    *,
    gpu: HardwareSource | None = None,
    software: str | Software | None = None,
    price_per_gpu_hour: float | None = None,
    world_size: int | None = None,
) -> PredictionTask:
    """Return the task for the arguments of `predict`.

    Raises:
        ConfigError: the experiment is wrong, the price is negative, or the hardware or software is
            unknown. The layout is not checked here.
    """
    replicas = None
    if isinstance(model, Model):
        if layout is None or workload is None:
            raise _refused("a model needs a layout and a workload; give both, or an experiment.")
        section = PredictionConfig()
    elif layout is not None or workload is not None:
        raise _refused("an experiment has its own layout and workload; leave them out.")
    else:
        config = checked_config(model, world_size)
        section = section_of(config)
        replicas = _linked_replicas(config, world_size)
        layout = layout_of_config(config, world_size)
        workload = workload_of_config(config, world_size)
        model = model_of_config(config.model, config.name)
    chosen = chosen_hardware(hardware, gpu, section)
    stack = chosen_software(software, section, chosen)
    system = system_of(chosen, stack, workload, model)
    price = chosen_price(price_per_gpu_hour, section)
    return PredictionTask(model, layout, workload, system, price, replicas)


def _linked_replicas(config: ExperimentConfig, world_size: int | None) -> ReplicaPlan | None:
    if config.strategy is None or config.strategy.network is None:
        return None
    return plan_checked(config, world_size).replicas


def system_of(hardware: Hardware, software: Software, workload: Workload, model: Model) -> System:
    """Return the system on which a workload runs."""
    check_calibrated(software, hardware)
    has_experts = language_of(model).net.moe is not None
    recipe = recipe_of(workload.recipe, hardware.name, software.name, has_experts)
    return System(
        hardware,
        software,
        workload.precision,
        strategy_bytes=workload.strategy_bytes,
        gathered_bytes=workload.gathered_bytes,
        optimizer_bytes=workload.optimizer_bytes,
        recipe=recipe,
    )


def section_of(source: object) -> PredictionConfig:
    """Return the prediction section of an experiment, an empty section for anything else."""
    section = source.prediction if isinstance(source, ExperimentConfig) else None
    return section or PredictionConfig()


def chosen_hardware(
    hardware: HardwareSource | None, gpu: HardwareSource | None, section: PredictionConfig
) -> Hardware:
    """Return the hardware of either argument, or else that of the section."""
    if hardware is not None and gpu is not None:
        raise _refused(f"gpu is {gpu} and hardware is {hardware}; they are the same, give one.")
    chosen = hardware if gpu is None else gpu
    return load_hardware(section.chosen_gpu if chosen is None else chosen)


def chosen_software(
    software: str | Software | None, section: PredictionConfig, hardware: Hardware
) -> Software:
    """Return the training stack of the argument, or else that of the section.

    On CPUs it is mimokit's own where neither names one.
    """
    if software is None and section.software is None and hardware.cores is not None:
        return MIMOKIT
    return load_software(section.chosen_software if software is None else software)


def chosen_price(price_per_gpu_hour: float | None, section: PredictionConfig) -> float | None:
    """Return the price of the argument, or else that of the section."""
    price = section.price_per_gpu_hour if price_per_gpu_hour is None else price_per_gpu_hour
    check_price(price)
    return price


def _refused(why: str) -> ConfigError:
    return ConfigError([Problem("prediction", "model", None, f"Prediction: {why}")])


def layout_of_config(config: ExperimentConfig, world_size: int | None = None) -> Layout:
    """Return the layout of an experiment: encoders, the language module, decoders.

    Raises:
        ConfigError: a data_parallel is missing, or a decoder makes images.
    """
    model = config.model
    refuse_if_any(_unpredicted(model))
    world = resolve(model, config.ranks_of_replica(world_size))
    sizes = {name: _sizes(config, world, name) for name in model.module_topology}
    language = sizes[model.llm_module_name]
    if model.deployment_mode == "homogeneous":
        sizes |= dict.fromkeys(model.encoder_module_names, language.in_first_stage)
    modules = {name: sizes[name] for name in topological_order(model.module_topology)}
    feeds = dict(feeds_of_config(model))
    return Layout(model.deployment_mode, modules, model.llm_module_name, feeds=feeds)


def _unpredicted(model: MimoParallelismConfig) -> Iterator[Problem]:
    for name in model.reconstructing_names:
        sentence = (
            f"Module '{name}': it makes images or sound, which is planned and run but not "
            "predicted yet; leave it out of what is predicted."
        )
        yield Problem(name, "modal_type", None, sentence)


def workload_of_config(config: ExperimentConfig, world_size: int | None = None) -> Workload:
    """Return the workload of one step of an experiment.

    Raises:
        ConfigError: a data_parallel is missing, so the number of samples is unknown, or a decoder
            makes images.
    """
    data, model, strategy = config.data, config.model, config.strategy
    refuse_if_any(_unpredicted(model))
    world = resolve(model, config.ranks_of_replica(world_size))
    inputs = {
        name: _input(config, name, _micro_batch_samples(config, world))
        for name in model.encoder_module_names
        if name in model.module_architectures
    }
    workload = Workload(
        seq_length=data.seq_length,
        global_batch_size=_micro_batch_samples(config, world) * data.num_microbatches,
        precision=config.runtime.precision or PRECISION_OF_RUNS,
        inputs=inputs,
        frozen=model.frozen_modules,
        strategy_bytes=0.0 if strategy is None else state_bytes_of(strategy),
        gathered_bytes=0.0 if strategy is None else gathered_bytes_of(strategy),
        optimizer_bytes=OPTIMIZER
        if strategy is None
        else MASTER_WEIGHT + inner_state_bytes_of(strategy),
        encoder_microbatches=config.runtime.encoder_microbatches,
        recipe=config.runtime.recipe,
        pipeline_order=config.runtime.pipeline_order,
    )
    if data.workload is None:
        return workload
    from mimokit.prediction.sample_loads import with_means  # few configs state their samples
    from mimokit.workload.files import read_mix

    return with_means(workload, read_mix(data.workload), model_of_config(model, config.name))


def _input(config: ExperimentConfig, name: str, samples: int) -> EncoderInput:
    geometry = geometry_of(config.model.get_architecture(name))
    tokens = config.tokens_of(name)
    inputs = None if config.prediction is None else config.prediction.inputs
    said = (inputs or {}).get(name)
    pattern = frame_pattern(config, name, samples)
    if said is None and pattern is not None:
        return EncoderInput(geometry.positions, pattern.mean, pattern=pattern)
    if said is None:
        return EncoderInput(length=geometry.positions, count=tokens / geometry.tokens)
    each = said.length * geometry.tokens / geometry.positions
    count = said.count or tokens / each
    is_said = said.imbalance is not None or said.count is not None
    uneven = None if is_said else pattern
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
