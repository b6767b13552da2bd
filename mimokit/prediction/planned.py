"""`mimokit.plan`: the plan of a layout, and next to it what is predicted for that plan."""

from collections.abc import Sequence
from dataclasses import replace

from mimokit.config import DataConfig, ExperimentConfig, MimoParallelismConfig
from mimokit.config.errors import ConfigError, Problem
from mimokit.config.rules.runtime_rules import unrunnable
from mimokit.planning.frames.batch_frames import says_frames
from mimokit.planning.layout import ConfigSource, checked_config, plan_checked
from mimokit.planning.model_section import experiment_of_model
from mimokit.planning.replicas import ReplicaPlan, strategies
from mimokit.planning.report import Estimates, PlannedLayout
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.memory.states import state_bytes_of


def plan(
    config: ConfigSource | MimoParallelismConfig,
    world_size: int | None = None,
    hosts: Sequence[str] | None = None,
    data: DataConfig | None = None,
) -> PlannedLayout:
    """Return all decisions about a layout that can be made before it runs.

    Where the config says how many frames samples have, or wants them to be shared, the plan also
    has an estimate of what sharing them saves. Where it describes the links between replicas, the
    plan also has the time of their exchanges.

    Args:
        config: a config, a mapping in the form of a YAML file, the path of one, or `preset:NAME`;
            or its section `model` alone, which is planned for the section `data`.
        world_size: ranks of the world; None: as many as the modules need.
        hosts: the host of each engine of a cluster, on which the replicas of the layout are placed;
            None: the hosts are not known.
        data: with the section `model`, the section of the same experiment. None: one micro-batch
            of as few samples as all replicas share equally.

    Returns:
        The plan, with what is predicted for it. The config is not changed: missing data_parallel
        sizes stay missing.

    Raises:
        ConfigError: all problems of the config, alone and in this world; more micro-batches, edges
            or slots than the tag of a message between stages can number; frames that have no room;
            hosts of a layout without replicas, or with too few engines.
    """
    if isinstance(config, MimoParallelismConfig):
        config = experiment_of_model(config, data, world_size)
    elif data is not None:
        raise TypeError("data goes with the section model alone; this config has its own.")
    checked = checked_config(config, world_size)
    layout = plan_checked(checked, world_size)
    if hosts is not None:
        layout = replace(layout, replicas=_replicas(layout).placed(hosts)[0])
    return PlannedLayout.of(layout, _estimates_of(checked, layout))


def _estimates_of(config: ExperimentConfig, layout: LayoutPlan) -> Estimates:
    estimates, replicas = Estimates(rejected=unrunnable(config)), layout.replicas
    if replicas is not None:
        estimates = replace(
            estimates,
            exchange_seconds=strategies().exchange_seconds_of_replicas(replicas),
            strategy_bytes=state_bytes_of(replicas.config),
        )
    if says_frames(config):
        from mimokit.prediction.frames import timed_frames  # few plans have frames

        estimates = replace(estimates, frames=timed_frames(config, layout))
    return estimates


def equal_hosts(plan: LayoutPlan, engines: int) -> list[str]:
    """Return the host of each engine of as many equal hosts as the replicas of a layout need."""
    replicas = _replicas(plan)
    if engines < 1:
        sentence = f"engines_per_host is {engines}; it must be at least 1."
        raise ConfigError([Problem("strategy", "engines_per_host", engines, sentence)])
    engines = min(engines, replicas.world_size)
    fitting = engines // replicas.layout_ranks
    hosts = (
        -(-replicas.replicas // fitting)
        if fitting
        else replicas.replicas * -(-replicas.layout_ranks // engines)
    )
    return [f"host {host}" for host in range(hosts) for _ in range(engines)]


def _replicas(plan: LayoutPlan) -> ReplicaPlan:
    if plan.replicas is not None:
        return plan.replicas
    sentence = (
        "The layout has no replicas that could be placed on hosts; add a section strategy, or "
        "leave out the hosts."
    )
    raise ConfigError([Problem("strategy", "hosts", None, sentence)])
