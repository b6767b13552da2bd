"""What entry points share: loading a config, a score as text."""

import math
import os
import warnings
from dataclasses import replace
from typing import TypeAlias

from mimokit.config import ConfigError, ExperimentConfig, Problem
from mimokit.config_files import load_experiment_config
from mimokit.planning.layout import check_plannable
from mimokit.planning.types import LayoutPlan
from mimokit.planning.weights.problems import check_weight_files
from mimokit.units import counted

Config: TypeAlias = "ExperimentConfig | str | os.PathLike[str]"


def finalized_copy(config: Config, world_size: int | None = None) -> ExperimentConfig:
    """Load a config if given a path, and return a finalized copy.

    Args:
        config: a config, or the path of one; it is not modified.
        world_size: ranks; None for as many as the modules need.

    Raises:
        ConfigError: with all problems, those of modules that contradict their weights, and those
            that `check_plannable` names, too.
    """
    if not isinstance(config, ExperimentConfig):
        config = load_experiment_config(config, world_size=world_size)
    config = config.model_copy(deep=True)
    config.finalize(world_size)
    check_weight_files(config.model)
    check_plannable(config)
    return config


def check_room(config: ExperimentConfig, engines: int) -> None:
    """Reject, with a ConfigError, more replicas than a cluster has engines for."""
    needed = config.total_world_size
    if config.strategy is None or needed <= engines:
        return
    room = engines // config.model.total_world_size
    right = f"choose at most {room}" if room else "choose a smaller layout"
    sentence = (
        f"Section 'strategy': strategy.replicas is {config.replicas}, which makes "
        f"{counted(needed, 'rank')} with {config.model.total_world_size} each, but the cluster has "
        f"{counted(engines, 'engine')}; {right}, or start {counted(needed, 'engine')}."
    )
    raise ConfigError([Problem("strategy", "replicas", config.replicas, sentence)])


def score_text(exact_match: float, chance: float | None) -> str:
    """Return the exact-match score as text, next to the chance level if it is known."""
    text = f"exact match {exact_match:.1%} on held-out samples"
    return text if chance is None or math.isnan(chance) else f"{text}, chance {chance:.1%}"


def with_hosts(cluster: object, plan: LayoutPlan) -> LayoutPlan:
    """Form the world of a layout's replicas, and return the plan with the hosts of its ranks.

    Only exchanges cross hosts then. Where a replica does not fit a host, a warning says so. On one
    host, and where ranks have places already, as in a job of torchrun, nothing happens.

    Raises:
        ClusterError: an engine does not answer, or the world cannot be formed.
    """
    from mimokit.cluster import EngineCluster

    if plan.replicas is None or not isinstance(cluster, EngineCluster):
        return plan
    hosts = cluster.hosts
    if len(set(hosts)) < 2:
        return plan
    replicas, placement = plan.replicas.placed(hosts)
    if placement.problem is not None:
        warnings.warn(placement.problem, stacklevel=3)
    cluster.form_world(ranks=placement.slots)
    return replace(plan, replicas=replicas)
