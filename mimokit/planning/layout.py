"""Plans a layout from its config."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mimokit.config import ExperimentConfig, check_experiment
from mimokit.config.errors import ConfigError, refuse_if_any
from mimokit.config.rules.message_tags import tag_problems
from mimokit.config.world_size import resolve, unknown_world_size
from mimokit.config_files import config_from_mapping, load_experiment_config
from mimokit.planning.batch import plan_batch
from mimokit.planning.bridges.colocated import BYTES_PER_NUMBER, plan_colocated_bridge
from mimokit.planning.bridges.disjoint import (
    plan_disjoint_bridge,
    plan_first_stage_bridge,
    without_gradient,
)
from mimokit.planning.execution import plan_executions
from mimokit.planning.frames.batch_frames import frame_problems
from mimokit.planning.pipeline import plan_program
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.strategies.replicas import plan_replicas
from mimokit.planning.types import Bridge, LayoutPlan

ConfigSource = ExperimentConfig | Mapping[str, Any] | str | os.PathLike[str]


def plan_layout(config: ConfigSource, world_size: int | None = None) -> LayoutPlan:
    """Return all decisions about a layout that can be made before it runs.

    Args:
        config: a config, a mapping in the form of a YAML file, the path of one, or `preset:NAME`.
        world_size: ranks of the world; None: as many as the modules need.

    Returns:
        The plan. The config is not changed: missing data_parallel sizes stay missing.

    Raises:
        ConfigError: all problems of the config, alone and in this world; more micro-batches, edges
            or slots than the tag of a message between stages can number; frames that have no room.
    """
    return plan_checked(checked_config(config, world_size), world_size)


def checked_config(config: ConfigSource, world_size: int | None = None) -> ExperimentConfig:
    """Return the config that a source names, after all checks.

    Raises:
        ConfigError: all problems of the config, alone and in this world.
        TypeError: it is none of these.
    """
    if isinstance(config, ExperimentConfig):
        check_experiment(config, world_size)
        return config
    if isinstance(config, Mapping):
        return config_from_mapping(config, world_size=world_size)
    if not isinstance(config, str | os.PathLike):
        raise TypeError(
            f"The config is a {type(config).__name__}; give an ExperimentConfig, a mapping, the "
            "path of a YAML file or preset:NAME."
        )
    return load_experiment_config(config, world_size=world_size)


def plan_checked(config: ExperimentConfig, world_size: int | None = None) -> LayoutPlan:
    """Return the plan of a config that `checked_config` returned for the same world.

    Raises:
        ConfigError: as `plan_layout`, apart from what `checked_config` raises.
    """
    refuse_if_any((*tag_problems(config.model, config.data), *frame_problems(config)))
    world = resolve(config.model, config.ranks_of_replica(world_size))
    if world.world_size is None or world.problems:
        raise ConfigError(world.problems or unknown_world_size(config.model))
    model, data = config.model, config.data
    modules = {name: ModuleRanks.of(name, sizes) for name, sizes in world.sizes.items()}
    topology = model.module_topology
    batch = plan_batch(
        model.deployment_mode,
        model.llm_module_name,
        modules,
        data.base_batch_size,
        data.num_microbatches,
        topology,
    )
    return LayoutPlan(
        world_size=world.world_size * config.replicas,
        deployment_mode=model.deployment_mode,
        llm_module_name=model.llm_module_name,
        topology=topology,
        modules=modules,
        executions=plan_executions(config, modules),
        batch=batch,
        bridges=tuple(
            _bridge(config, modules[source], modules[target], batch.samples_per_microbatch)
            for source, targets in topology.items()
            for target in targets
        ),
        program=plan_program(
            model.deployment_mode,
            model.llm_module_name,
            topology,
            modules,
            {name: own.loads for name, own in batch.modules.items()},
            batch.num_microbatches,
            {name: network.modality for name, network in model.module_architectures.items()},
            model.frozen_modules,
            data.absent_microbatches(batch.samples_per_microbatch),
            [
                name
                for name, network in model.module_architectures.items()
                if network.any_image_size or network.mrope_section is not None
            ],
        ),
        replicas=plan_replicas(config, modules, world.world_size),
    )


def _bridge(
    config: ExperimentConfig,
    source: ModuleRanks,
    destination: ModuleRanks,
    samples_per_microbatch: int,
) -> Bridge:
    """Return how the output of one module reaches the next."""
    bytes_per_sample = _numbers_per_sample(config, source.module) * BYTES_PER_NUMBER
    mode = config.model.deployment_mode
    staged = mode == "colocated" and destination.pipeline_parallel > 1
    if mode != "heterogeneous" and not staged:
        shared = plan_colocated_bridge(
            source, destination, samples_per_microbatch, bytes_per_sample
        )
        if config.model.has_backward(source.module):
            return shared
        return replace(shared, bytes_backward=0)  # no gradient crosses
    between = plan_first_stage_bridge if staged else plan_disjoint_bridge
    bridge = between(
        (source.module, source),
        (destination.module, destination),
        samples_per_microbatch,
        bytes_per_sample,
    )
    return bridge if config.model.has_backward(source.module) else without_gradient(bridge)


def _numbers_per_sample(config: ExperimentConfig, source: str) -> int:
    """Return the numbers in a module's output for one sample, as it crosses.

    An output that reaches the language module already has its width: the projector runs on the
    encoder's ranks.
    """
    model, data = config.model, config.data
    language = model.llm_module_name
    if source == language:
        return data.seq_length * model.get_architecture(language).hidden_size
    if language in model.module_topology[source]:
        return data.modality_seq_length(source) * model.get_architecture(language).hidden_size
    own = model.get_architecture(source)
    return own.seq_length * own.hidden_size
