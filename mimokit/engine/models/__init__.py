"""The modules of a model as Megatron specs."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.engine.models.specs import multimodal_provider as multimodal_provider
    from mimokit.engine.models.transformer import causal_mask as causal_mask
    from mimokit.engine.models.weights import named_parameters as named_parameters
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
