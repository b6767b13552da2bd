"""What a file says for predictions is about the modules that there are."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.errors import Problem
from mimokit.config.rules.context import ValidationContext


def prediction_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield the inputs of modules that are no encoders."""
    prediction = context.prediction
    if prediction is None or not context.is_valid("model.llm_module_name", "model.topology"):
        return
    encoders = context.model.encoder_module_names
    for name, seen in (prediction.inputs or {}).items():
        if name not in encoders and context.has_valid_sizes(name):
            yield Problem(
                name,
                "inputs",
                dict(seen),
                f"Module '{name}': prediction.inputs has it, but it is no encoder (those are "
                f"{', '.join(encoders) or 'none'}); remove the entry or add the encoder.",
                {"path": f"prediction.inputs.{name}", "value": None},
            )
