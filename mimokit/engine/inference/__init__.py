"""Networks of Hugging Face weights, sharded over ranks in plain torch: checks and generation."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.engine.inference.sampling import sample as sample
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
