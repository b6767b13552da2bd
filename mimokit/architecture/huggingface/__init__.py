"""Models of Hugging Face: their configs and weights. Nothing is downloaded."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.architecture.huggingface.models import ENCODER as ENCODER
    from mimokit.architecture.huggingface.models import IMAGES as IMAGES
    from mimokit.architecture.huggingface.models import LANGUAGE as LANGUAGE
    from mimokit.architecture.huggingface.models import PROJECTOR as PROJECTOR
    from mimokit.architecture.huggingface.models import from_hf as from_hf
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
