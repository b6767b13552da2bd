"""Networks as numbers: their parameters, sizes and tokens."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.architecture.attention import LatentAttention as LatentAttention
    from mimokit.architecture.encoders import AudioEncoder as AudioEncoder
    from mimokit.architecture.encoders import RowEncoder as RowEncoder
    from mimokit.architecture.encoders import TextEncoder as TextEncoder
    from mimokit.architecture.encoders import VisionEncoder as VisionEncoder
    from mimokit.architecture.feed_forward import MixtureOfExperts as MixtureOfExperts
    from mimokit.architecture.from_config import model_of_config as model_of_config
    from mimokit.architecture.huggingface.functions import longest_sequence as longest_sequence
    from mimokit.architecture.huggingface.models import from_hf as from_hf
    from mimokit.architecture.huggingface.obstacles import obstacles as obstacles
    from mimokit.architecture.modules import EncoderBranch as EncoderBranch
    from mimokit.architecture.modules import LanguageModel as LanguageModel
    from mimokit.architecture.modules import Model as Model
    from mimokit.architecture.modules import MultimodalModel as MultimodalModel
    from mimokit.architecture.modules import Projector as Projector
    from mimokit.architecture.presets import load_model as load_model
    from mimokit.architecture.presets import model_facts as model_facts
    from mimokit.architecture.presets import model_names as model_names
    from mimokit.architecture.transformer import Transformer as Transformer
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
