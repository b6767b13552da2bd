"""The parameters of a module's part on a rank, by their names in the whole module."""

from __future__ import annotations

import torch

from mimokit.architecture.tensors import EMBEDDING
from mimokit.engine.megatron import TransformerBlock
from mimokit.engine.parallel.marks import is_tied_copy


def named_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the parameters of a module by their names in the whole module.

    The copy of a tied embedding on the last stage has the name of the embedding.
    """
    return {
        EMBEDDING if is_tied_copy(value) else name: value
        for name, value in parameters_of_whole(module).items()
    }


def parameters_of_whole(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the parameters of a module by their names in the whole module.

    A pipeline stage numbers its layers from 0; here they have their numbers in the whole module.
    """
    parameters = dict(module.named_parameters())
    for path, part in module.named_modules():
        if isinstance(part, TransformerBlock) and len(part.layers):
            first = part.layers[0].layer_number - 1
            prefix = f"{path}.layers." if path else "layers."
            parameters = {
                _renumbered(name, prefix, first): value for name, value in parameters.items()
            }
    return parameters


def _renumbered(name: str, prefix: str, first: int) -> str:
    if not name.startswith(prefix):
        return name
    number, rest = name[len(prefix) :].split(".", 1)
    return f"{prefix}{int(number) + first}.{rest}"
