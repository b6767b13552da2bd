"""Shipped models by kind."""

from mimokit.architecture import LanguageModel, MultimodalModel, Transformer, load_model
from mimokit.config.sizes import Numbers, ParallelSizes
from mimokit.prediction.step_time import System
from mimokit.prediction.step_time.layer_input import LayerInput
from mimokit.prediction.step_time.products import dense_terms


def llava() -> MultimodalModel:
    model = load_model("llava-1.5-7b")
    assert isinstance(model, MultimodalModel)
    return model


def language_model(name: str) -> LanguageModel:
    model = load_model(name)
    assert isinstance(model, LanguageModel)
    return model


def product_seconds(
    net: Transformer, sizes: ParallelSizes, tokens: Numbers, system: System
) -> Numbers:
    """Return the seconds of a dense layer's products in one forward pass on one rank."""
    layer = LayerInput(net, None, sizes, tokens, tokens, system)
    return sum((term.seconds for term in dense_terms(layer)), 0.0)
