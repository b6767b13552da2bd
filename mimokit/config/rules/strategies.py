"""The section strategy agrees with the number of its replicas and with the world."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.errors import ConfigError, Problem
from mimokit.config.parallelism import LARGEST_WORLD
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.facts import network_path


def strategy_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield groups larger than the replicas, and replicas that a world has no room for."""
    strategy = context.strategy
    if strategy is None or not context.is_valid("strategy"):
        return
    try:
        strategy.check_nodes(strategy.replicas)
    except ConfigError as error:
        yield from error.problems
    if strategy.name == "demo":
        yield from _stepped_apart(context)
    yield from _world(context, strategy.replicas)


def _stepped_apart(context: ValidationContext) -> Iterator[Problem]:
    """Yield modules with an own learning rate under a strategy that is the optimizer of all."""
    for name, network in context.model.module_architectures.items():
        if network.optimizer is not None:
            yield Problem(
                name,
                "optimizer",
                network.optimizer,
                f"Module '{name}': optimizer is given, but strategy.name is demo, which is an "
                "optimizer with one lr and weight_decay for all modules; leave it out, or choose "
                "another strategy.",
                {"path": network_path(name, "optimizer"), "value": None},
            )


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
