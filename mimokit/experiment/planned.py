"""Plans a config for a reader: the layout, what its frames cost, how long replicas exchange."""

from __future__ import annotations

from dataclasses import replace

from mimokit.planning.frames.batch_frames import says_frames
from mimokit.planning.layout import ConfigSource, checked_config, plan_checked
from mimokit.planning.types import LayoutPlan


def plan(config: ConfigSource, world_size: int | None = None) -> LayoutPlan:
    """Return all decisions about a layout that can be made before it runs.

    Where the config says how many frames samples have, or wants them to be shared, the plan also
    has an estimate of what sharing them saves. Where it describes the links between replicas, the
    plan also has the time of their exchanges.

    Args:
        config: a config, a mapping in the form of a YAML file, the path of one, or `preset:NAME`.
        world_size: ranks of the world; None: as many as the modules need.

    Returns:
        The plan. The config is not changed: missing data_parallel sizes stay missing.

    Raises:
        ConfigError: all problems of the config, alone and in this world; more micro-batches, edges
            or slots than the tag of a message between stages can number; frames that have no room.
    """
    checked = checked_config(config, world_size)
    found = plan_checked(checked, world_size)
    if found.replicas is not None and found.replicas.config.network is not None:
        from mimokit.prediction.network import exchange_seconds_of_replicas

        seconds = exchange_seconds_of_replicas(found.replicas)
        found = replace(found, replicas=replace(found.replicas, exchange_seconds=seconds))
    if not says_frames(checked):
        return found
    from mimokit.prediction.frames import timed_frames

    return replace(found, frames=timed_frames(checked, found))
