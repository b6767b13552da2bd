"""What one process adds of inner layers of encoders to layers of the language model (deepstack).

Written without the code that layouts run: Megatron's `MimoModel` puts rows in their places, and
layers add theirs by hooks.
"""

from collections.abc import Mapping
from typing import Any

import torch

from mimokit.engine.megatron import MimoModel


def add_inner_layers(mimo: MimoModel) -> None:
    """Let a whole model add the rows of inner layers that its encoders return behind the others."""
    align, width = mimo.align_embeddings_by_token_positions, mimo.language_model.config.hidden_size
    laid: list[torch.Tensor] = []

    def of_each(
        modality_embeddings: Mapping[str, torch.Tensor], *places: Any, **named: Any
    ) -> torch.Tensor:
        parts = {n: torch.split(rows, width, dim=-1) for n, rows in modality_embeddings.items()}
        laid.clear()
        for number in range(max(map(len, parts.values()))):
            own = {
                name: part[number] if number < len(part) else torch.zeros_like(part[0])
                for name, part in parts.items()
            }
            laid.append(align(own, *places, **named))
        return laid.pop(0)

    def add(number: int, layer: object, given: object, output: tuple[torch.Tensor, Any]) -> Any:
        return (output[0] + laid[number], *output[1:]) if number < len(laid) else None

    mimo.align_embeddings_by_token_positions = of_each
    for number, layer in enumerate(mimo.language_model.decoder.layers):
        layer.register_forward_hook(
            lambda hooked, given, output, number=number: add(number, hooked, given, output)
        )
