"""Public names whose homes are `mimokit.engine.weights` and `mimokit.extras.generation`."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.engine.weights.conversion import convert_to_hf as convert_to_hf
    from mimokit.engine.weights.conversion import convert_to_layout as convert_to_layout
    from mimokit.engine.weights.reading import fill as fill
    from mimokit.engine.weights.shard import read_shard as read_shard
    from mimokit.extras.generation.network.sampling import sample as sample
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
