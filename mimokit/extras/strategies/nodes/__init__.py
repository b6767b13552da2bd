"""Strategies of infrequent communication between nodes, in plain torch.

Strategies execute a `StrategyPlan`, which every node makes from the same arguments; nothing is sent
to agree on it. `mimokit.engine.strategies` has the public names.
"""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.extras.strategies.nodes import communicate as communicate
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
