"""Shipped models by kind."""

from __future__ import annotations

from mimokit.architecture import LanguageModel, MultimodalModel, load_model


def llava() -> MultimodalModel:
    model = load_model("llava-1.5-7b")
    assert isinstance(model, MultimodalModel)
    return model


def language_model(name: str) -> LanguageModel:
    model = load_model(name)
    assert isinstance(model, LanguageModel)
    return model
