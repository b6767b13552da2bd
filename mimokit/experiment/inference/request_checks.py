"""What can be rejected of a request to generate before engines start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mimokit.experiment.inference.prompts import checked_prompts
from mimokit.planning.weights.directory import refused
from mimokit.planning.weights.layout_files import checkpoint_of
from mimokit.planning.weights.running import language_planner, placeholder, runnable_functions
from mimokit.units import shown

if TYPE_CHECKING:
    from mimokit.planning.weights import WeightPlanner


def check_request(
    directory: str | os.PathLike[str],
    tensor_parallel: int,
    token_ids: Any,
    max_new_tokens: int,
    how: Mapping[str, Any],
    *,
    pipeline_parallel: int = 1,
    replicas: int = 1,
    dtype: str | None = None,
) -> None:
    """Raise `ConfigError` if `ShardedModel` or its `generate` would; no engine is needed."""
    from mimokit.engine.inference.sampling import Sampling

    planner = checked_planner(directory, tensor_parallel, pipeline_parallel, replicas, dtype)
    positions = runnable_functions(planner.checkpoint).positions
    check_count(max_new_tokens)
    image = placeholder(planner.checkpoint)
    checked_prompts(token_ids, planner.family.vocab or 0, positions, max_new_tokens, image)
    Sampling(**how)


def checked_planner(
    directory: str | os.PathLike[str], tensor: int, pipeline: int, replicas: int, dtype: str | None
) -> WeightPlanner:
    """Return the planner of a checkpoint that can generate in these sizes.

    Raises:
        ConfigError: it cannot.
    """
    if pipeline != 1:
        what = (
            f"pipeline_parallel is {shown(pipeline)}, and generation through a pipeline does not "
            "exist; use tensor_parallel and replicas"
        )
        raise refused("Layout", "pipeline_parallel", pipeline, what)
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
        what = f"replicas is {shown(replicas)}; it must be at least 1"
        raise refused("Layout", "replicas", replicas, what)
    return language_planner(checkpoint_of(directory), tensor, dtype)


def check_count(value: object) -> None:
    """Raise `ConfigError` unless a number of new tokens is one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        what = f"max_new_tokens is {shown(value)}; it must be a whole number of at least 1"
        raise refused("Options", "max_new_tokens", value, what)
