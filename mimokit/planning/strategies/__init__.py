"""What nodes exchange under a strategy: planned from a seed, without a message."""

from mimokit.planning.strategies.draws import Grouping, Masks
from mimokit.planning.strategies.plan import Exchange, StrategyPlan, plan_of_size, plan_strategy
from mimokit.planning.strategies.rules import Rule
from mimokit.planning.strategies.shards import fragments_of
from mimokit.planning.strategies.sizes import sent_bytes

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
