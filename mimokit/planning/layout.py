"""Plans a layout from its config."""

import os
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Any

from mimokit.config import (
    ConfigError,
    DeploymentMode,
    ExperimentConfig,
    check_experiment,
)
from mimokit.config.errors import refuse_if_any
from mimokit.config.graph import Topology, topological_order
from mimokit.config.world_size import resolve
from mimokit.planning.bridges.plan import (
    plan_colocated_bridge,
    plan_disjoint_bridge,
    plan_first_stage_bridge,
    without_gradient,
)
from mimokit.planning.executions import plan_executions
from mimokit.planning.program import plan_program
from mimokit.planning.ranks import ModuleRanks, RankRanges
from mimokit.planning.replicas import plan_replicas
from mimokit.planning.types import BatchPlan, Bridge, LayoutPlan, ModuleBatch
from mimokit.planning.unplannable import unplannable

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
            or slots than the tag of a message between stages can number; frames that have no room;
            adapters of other items than encoders make.
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
    from mimokit.config_files import config_from_mapping, load_experiment_config

    if isinstance(config, Mapping):
        return config_from_mapping(config, world_size=world_size)
    if not isinstance(config, str | os.PathLike):
        raise TypeError(
            f"The config is a {type(config).__name__}; give an ExperimentConfig, a mapping, the "
            "path of a YAML file or preset:NAME."
        )
    return load_experiment_config(config, world_size=world_size)


def check_plannable(config: ExperimentConfig) -> None:
    """Reject what the rules of a config alone do not see, for a prediction needs none of it.

    Raises:
        ConfigError: more micro-batches, edges or slots than the tag of a message between stages can
            number; frames, or one image, that have no room; adapters of other items than encoders
            make; decoders of other items than encoders read.
    """
    refuse_if_any(unplannable(config))


def plan_checked(config: ExperimentConfig, world_size: int | None = None) -> LayoutPlan:
    """Return the plan of what `checked_config` returned for the same world; see `plan_layout`."""
    check_plannable(config)
    world = resolve(config.model, config.ranks_of_replica(world_size))
    if world.world_size is None or world.problems:
        raise ConfigError(world.problems)
    model, data = config.model, config.data
    order = topological_order(model.module_topology)
    modules = {name: ModuleRanks.of(name, world.sizes[name]) for name in order}
    if model.deployment_mode == "homogeneous":
        for name in model.encoder_module_names:
            modules[name] = modules[name].in_first_stage()
    topology, executions = model.module_topology, plan_executions(config, modules)
    batch = plan_batch(
        model.deployment_mode,
        model.llm_module_name,
        modules,
        data.base_batch_size,
        data.num_microbatches,
        topology,
        model.reconstructing_names,
    )
    return LayoutPlan(
        world_size=world.world_size * config.replicas,
        deployment_mode=model.deployment_mode,
        llm_module_name=model.llm_module_name,
        topology=topology,
        modules=modules,
        executions=executions,
        batch=batch,
        bridges=tuple(
            _bridge(
                config,
                modules[source],
                modules[target],
                batch.samples_per_microbatch,
                executions[source].activation_bytes,
            )
            for source, targets in topology.items()
            for target in targets
        ),
        program=plan_program(config, modules, executions, batch),
        replicas=plan_replicas(config, modules, world.world_size),
    )


def _bridge(
    config: ExperimentConfig,
    source: ModuleRanks,
    destination: ModuleRanks,
    samples_per_microbatch: int,
    number_bytes: int,
) -> Bridge:
    bytes_per_sample = number_bytes * _numbers_per_sample(config, source.module, destination.module)
    mode = config.model.deployment_mode
    language = config.model.get_parallelism(config.model.llm_module_name)
    staged = mode == "colocated" and language.pipeline_parallel > 1
    if mode != "heterogeneous" and not staged:
        bridge: Bridge = plan_colocated_bridge(
            source, destination.in_first_stage(), samples_per_microbatch, bytes_per_sample
        )
    else:
        between = plan_first_stage_bridge if staged else plan_disjoint_bridge
        ends = (source.module, source), (destination.module, destination)
        bridge = between(*ends, samples_per_microbatch, bytes_per_sample)
    return bridge if config.model.has_backward(source.module) else without_gradient(bridge)


def _numbers_per_sample(config: ExperimentConfig, source: str, destination: str) -> int:
    # An encoder's output already has the width of each module that it feeds: its projectors run on
    # the encoder's ranks.
    model, data = config.model, config.data
    language = model.llm_module_name
    if source == language:
        return data.seq_length * model.get_architecture(language).hidden_size
    if source in model.encoder_module_names:
        width = model.get_architecture(destination).hidden_size
        inner = model.get_architecture(source).inner_layers if destination == language else ()
        return config.tokens_of(source) * width * (1 + len(inner))
    network = model.get_architecture(source)
    return network.seq_length * network.hidden_size


def plan_batch(
    mode: DeploymentMode,
    llm_module_name: str,
    modules: Mapping[str, ModuleRanks],
    base_batch_size: int,
    num_microbatches: int,
    topology: Topology,
    placing: Collection[str] = (),
) -> BatchPlan:
    """Return the samples that each rank computes and reads, contiguous along data parallelism.

    Replica r of a module computes samples [r * B / dp, (r + 1) * B / dp) of a micro-batch of B.
    On colocated ranks a rank reads once for all its modules: the range of the module with the
    fewest replicas, which contains those of all others. If the language model has a pipeline, the
    ranks of its later stages compute other samples than their encoders: each module reads
    separately.
    """
    samples_per_microbatch = base_batch_size * modules[llm_module_name].data_parallel
    fewest = min(ranks.data_parallel for ranks in modules.values())
    once = mode == "colocated" and modules[llm_module_name].pipeline_parallel == 1
    batches = {}
    for name, ranks in modules.items():
        replicas_read = fewest if once else ranks.data_parallel
        spans = _loading_spans(ranks, llm_module_name, topology, placing)
        batches[name] = ModuleBatch(
            micro_batch_size=samples_per_microbatch // ranks.data_parallel,
            samples=_pieces(ranks, (ranks.ranks,), ranks.data_parallel, samples_per_microbatch),
            loads=tuple(chain.from_iterable(spans)),
            loaded=_pieces(ranks, spans, replicas_read, samples_per_microbatch),
        )
    return BatchPlan(samples_per_microbatch, num_microbatches, batches)


def _loading_spans(
    ranks: ModuleRanks, llm_module_name: str, topology: Topology, placing: Collection[str]
) -> tuple[range, ...]:
    # Modules that no module feeds read inputs, modules that feed none read labels, and the language
    # module reads both.
    is_language = ranks.module == llm_module_name
    fed = any(ranks.module in targets for targets in topology.values())
    stages = []
    if is_language or not fed or ranks.module in placing:
        stages.append(ranks.stage(0))
    if is_language or not topology[ranks.module]:
        stages.append(ranks.stage(-1))
    return tuple(dict.fromkeys(stages))


def _pieces(
    ranks: ModuleRanks, spans: Iterable[range], replicas: int, samples_per_microbatch: int
) -> RankRanges:
    return RankRanges(
        spans=tuple(spans),
        rank_offset=ranks.rank_offset,
        ranks_per_piece=ranks.ranks_per_stage // replicas,
        pieces=replicas,
        size=samples_per_microbatch // replicas,
    )
