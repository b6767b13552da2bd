"""A transformer layer whose weights depend on its number, not on what was built before it."""

from __future__ import annotations

from typing import Any

import torch

from mimokit.engine.megatron import (
    ModuleSpec,
    TransformerConfig,
    TransformerLayer,
    get_transformer_layer_offset,
)


class SeededTransformerLayer(TransformerLayer):  # type: ignore[misc]
    """Megatron's `TransformerLayer`, initialized from a seed of its own.

    A layer then starts with the same weights on whatever pipeline stage it is built.

    Args:
        initial_seed: seed of the module; the layer adds its number in the whole module.
    """

    def __init__(
        self, config: TransformerConfig, *args: Any, initial_seed: int, **options: Any
    ) -> None:
        stage = options["pg_collection"].pp.rank()
        number = options["layer_number"] + get_transformer_layer_offset(config, None, stage)
        torch.manual_seed(initial_seed + number)
        super().__init__(config, *args, **options)


def seeded(layer_spec: ModuleSpec, initial_seed: int) -> ModuleSpec:
    """Return the spec of the same layer with a seed."""
    return ModuleSpec(
        module=SeededTransformerLayer,
        params={**(layer_spec.params or {}), "initial_seed": initial_seed},
        submodules=layer_spec.submodules,
    )
