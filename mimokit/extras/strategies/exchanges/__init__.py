"""What nodes exchange under a strategy: planned from a seed, without a message."""

from mimokit.extras.strategies.exchanges.masks import Grouping, Masks
from mimokit.extras.strategies.exchanges.plan import (
    Exchange,
    StrategyPlan,
    plan_of_size,
    plan_strategy,
)
from mimokit.extras.strategies.exchanges.rules import Rule
from mimokit.extras.strategies.exchanges.shapes import fragments_of
from mimokit.extras.strategies.exchanges.sizes import sent_bytes

__all__ = [
    "Exchange",
    "Grouping",
    "Masks",
    "Rule",
    "StrategyPlan",
    "fragments_of",
    "plan_of_size",
    "plan_strategy",
    "sent_bytes",
]
