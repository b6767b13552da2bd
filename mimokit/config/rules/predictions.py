"""What a file says for predictions is about the modules that there are."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.errors import Problem
from mimokit.config.rules.context import Subject


def prediction_problems(subject: Subject) -> Iterator[Problem]:
    """Yield the inputs of modules that are no encoders."""
    prediction = subject.prediction
    if prediction is None or not subject.sound("model.llm_module_name", "model.topology"):
        return
    encoders = subject.model.encoder_module_names
    for name, seen in (prediction.inputs or {}).items():
        if name not in encoders and subject.sound_ranks(name):
            yield Problem(
                name,
                "inputs",
                dict(seen),
                f"Module '{name}': prediction.inputs has it, but it is no encoder (those are "
                f"{', '.join(encoders) or 'none'}); remove the entry or add the encoder.",
                {"path": f"prediction.inputs.{name}", "value": None},
            )
