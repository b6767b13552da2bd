"""Hugging Face weights on tensor parallel ranks: check, generation, sampling from shards."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.extras.generation.network.sampling import sample as sample
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
