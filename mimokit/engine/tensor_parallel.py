"""Public names whose homes are `mimokit.engine.weights` and `mimokit.engine.inference`."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.engine.inference.sampling import sample as sample
    from mimokit.engine.weights.conversion import convert_to_hf as convert_to_hf
    from mimokit.engine.weights.conversion import convert_to_layout as convert_to_layout
    from mimokit.engine.weights.reading import fill as fill
    from mimokit.engine.weights.reading import read_shard as read_shard
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
