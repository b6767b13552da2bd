"""Hugging Face weights to the shards of ranks and back, in plain torch."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.engine.weights.conversion import convert_to_hf as convert_to_hf
    from mimokit.engine.weights.conversion import convert_to_layout as convert_to_layout
    from mimokit.engine.weights.files import opened as opened
    from mimokit.engine.weights.reading import fill as fill
    from mimokit.engine.weights.shard import read_parameter as read_parameter
    from mimokit.engine.weights.shard import read_shard as read_shard
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
