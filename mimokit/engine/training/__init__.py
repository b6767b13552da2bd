"""Training on a rank: the loop, evaluation and measurements."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.engine.training.memory import memory_meter as memory_meter
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
