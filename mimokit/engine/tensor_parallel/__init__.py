"""Hugging Face weights to shards and back, and sampling from shards, in plain torch."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.engine.tensor_parallel.conversion import convert_to_hf as convert_to_hf
    from mimokit.engine.tensor_parallel.conversion import convert_to_layout as convert_to_layout
    from mimokit.engine.tensor_parallel.reading import fill as fill
    from mimokit.engine.tensor_parallel.reading import read_shard as read_shard
    from mimokit.engine.tensor_parallel.sampling import sample as sample
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
