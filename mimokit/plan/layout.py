"""From a config to the whole plan of its layout."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mimokit.config import (
    ExperimentConfig,
    MimoParallelismConfig,
    check_experiment,
    config_from_mapping,
    load_experiment_config,
)
from mimokit.config.problems import ConfigError
from mimokit.config.worlds import ResolvedWorld, resolve, unknown_world_size
from mimokit.plan.batch import plan_batch
from mimokit.plan.bridge import BYTES_PER_NUMBER, plan_colocated_bridge
from mimokit.plan.rank_map import RankMap
from mimokit.plan.types import ColocatedBridge, LayoutPlan

ConfigSource = ExperimentConfig | Mapping[str, Any] | str | os.PathLike[str]


def plan(config: ConfigSource, world_size: int | None = None) -> LayoutPlan:
    """Decide everything about a layout that can be decided before it runs.

    Args:
        config: a config, a mapping in the form of a YAML file, the path of one, or `preset:NAME`.
        world_size: ranks of the world, or None for as many as the modules need.

    Returns:
        The plan. The config is left as it is, missing data_parallel sizes included.

    Raises:
        ConfigError: everything that is wrong with the config, or with it in this world.
    """
    checked = _checked(config, world_size)
    world = resolve(checked.model, world_size)
    if world.world_size is None or world.problems:
        raise ConfigError(world.problems or unknown_world_size(checked.model))
    return _plan(checked, world, world.world_size)


def _checked(config: ConfigSource, world_size: int | None) -> ExperimentConfig:
    if isinstance(config, ExperimentConfig):
        check_experiment(config, world_size)
        return config
    if isinstance(config, Mapping):
        return config_from_mapping(config, world_size=world_size)
    return load_experiment_config(config, world_size=world_size)


def _plan(config: ExperimentConfig, world: ResolvedWorld, world_size: int) -> LayoutPlan:
    model, data = config.model, config.data
    modules = {name: RankMap.of(name, sizes) for name, sizes in world.sizes.items()}
    batch = plan_batch(
        model.deployment_mode,
        model.llm_module_name,
        modules,
        data.base_batch_size,
        data.num_microbatches,
    )
    return LayoutPlan(
        world_size=world_size,
        deployment_mode=model.deployment_mode,
        llm_module_name=model.llm_module_name,
        topology=_topology(model),
        modules=modules,
        batch=batch,
        bridges=_bridges(config, modules, batch.global_batch_size),
    )


def _topology(model: MimoParallelismConfig) -> dict[str, tuple[str, ...]]:
    """Return module -> the modules it feeds: every encoder feeds the language module."""
    language = model.llm_module_name
    return {name: () if name == language else (language,) for name in model.module_parallelisms}


def _bridges(
    config: ExperimentConfig, modules: Mapping[str, RankMap], global_batch_size: int
) -> tuple[ColocatedBridge, ...]:
    """Return one bridge per encoder where modules share their ranks.

    What crosses is already as wide as the language module: the projector runs on the encoder's
    side.
    """
    model = config.model
    if model.deployment_mode == "heterogeneous":
        return ()
    width = model.get_architecture(model.llm_module_name).hidden_size
    bytes_per_sample = config.data.image_seq_length * width * BYTES_PER_NUMBER
    return tuple(
        plan_colocated_bridge(
            modules[name], modules[model.llm_module_name], global_batch_size, bytes_per_sample
        )
        for name in model.encoder_module_names
    )
