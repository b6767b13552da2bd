"""The section strategy agrees with the number of its replicas and with the world."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.errors import ConfigError, Problem
from mimokit.config.parallelism import LARGEST_WORLD
from mimokit.config.rules.context import ValidationContext


def strategy_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield groups larger than the replicas, and replicas that a world has no room for."""
    strategy = context.strategy
    if strategy is None or not context.is_valid("strategy"):
        return
    try:
        strategy.check_nodes(strategy.replicas)
    except ConfigError as error:
        yield from error.problems
    yield from _world(context, strategy.replicas)


def _world(context: ValidationContext, replicas: int) -> Iterator[Problem]:
    size = context.world_size
    if replicas > 1 and isinstance(size, int) and size % replicas:
        fitting = [n for n in range(min(replicas, size), 0, -1) if size % n == 0]
        yield Problem(
            "strategy",
            "replicas",
            replicas,
            f"Section 'strategy': strategy.replicas is {replicas}, which does not divide the "
            f"{size} ranks of the world; choose {fitting[0] if fitting else 1}, or another world.",
        )
        return
    each = context.world.world_size
    if size is None and each is not None and each * replicas > LARGEST_WORLD:
        yield Problem(
            "strategy",
            "replicas",
            replicas,
            f"Section 'strategy': strategy.replicas is {replicas}, but with {each} ranks each that "
            f"is more than the {LARGEST_WORLD} ranks of the largest world; lower it.",
        )
