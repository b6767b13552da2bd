"""The outputs of the parts of a network, as they run."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from mimokit.extras.generation.check.inputs import EMBEDDING

Parts = dict[str, torch.Tensor]
"""Part of a network -> its output: [batch, tokens, width]; of an encoder and its projector
[tokens of all images, width]."""

Turn = Callable[[torch.Tensor], torch.Tensor]


def record(parts: Parts, name: str, module: torch.nn.Module, turn: Turn | None = None) -> None:
    """Keep the output of a module under a name.

    Args:
        turn: makes it [batch, tokens, width].
    """

    def hook(module: object, given: object, output: Any) -> None:
        made = output[0] if isinstance(output, tuple) else output
        parts[name] = made if turn is None else turn(made)

    module.register_forward_hook(hook)


def record_layers(
    parts: Parts, prefix: str, layers: Iterable[torch.nn.Module], turn: Turn | None = None
) -> None:
    """Keep the outputs of layers, and what the first is given."""

    def hook(module: object, given: Any, named: Any) -> None:
        hidden = given[0] if given else named["hidden_states"]
        parts[f"{prefix}{EMBEDDING}"] = hidden if turn is None else turn(hidden)

    first, *_ = layers = list(layers)
    first.register_forward_pre_hook(hook, with_kwargs=True)
    for number, layer in enumerate(layers):
        record(parts, f"{prefix}decoder.layers.{number}", layer, turn)
