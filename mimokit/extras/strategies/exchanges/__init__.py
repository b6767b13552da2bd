"""What nodes exchange under a strategy: planned from a seed, without a message."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.extras.strategies.exchanges.masks import Grouping as Grouping
    from mimokit.extras.strategies.exchanges.masks import Masks as Masks
    from mimokit.extras.strategies.exchanges.plan import Exchange as Exchange
    from mimokit.extras.strategies.exchanges.plan import StrategyPlan as StrategyPlan
    from mimokit.extras.strategies.exchanges.plan import plan_of_size as plan_of_size
    from mimokit.extras.strategies.exchanges.plan import plan_strategy as plan_strategy
    from mimokit.extras.strategies.exchanges.rules import Rule as Rule
    from mimokit.extras.strategies.exchanges.shapes import fragments_of as fragments_of
    from mimokit.extras.strategies.exchanges.sizes import sent_bytes as sent_bytes
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
