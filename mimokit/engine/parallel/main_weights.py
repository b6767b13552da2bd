"""The fp32 numbers that an optimizer steps: the parameters of a model, or copies of them.

Parameters of fewer bits have a copy in fp32, their main weight: an update that is smaller than half
a step of bf16 would be lost otherwise. It starts as the parameter is, so that a model starts from
weights of its own precision. After a step the parameter is the main weight, rounded.
"""

from __future__ import annotations

import torch

_MAIN = "main_weight"
"""Attribute of a parameter that is stepped through a copy."""


def main_weight(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """Return what an optimizer steps instead of a parameter: itself in fp32, else its main weight.

    There is one main weight, whoever asks. A parameter that is not trained has none.
    """
    if parameter.dtype == torch.float32 or not parameter.requires_grad:
        return parameter
    main: torch.nn.Parameter | None = getattr(parameter, _MAIN, None)
    if main is None:
        main = torch.nn.Parameter(parameter.detach().float())
        setattr(parameter, _MAIN, main)
    return main


def main_value(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Return the weight of a parameter in the most bits that there are of it on this rank."""
    main: torch.Tensor = getattr(parameter, _MAIN, parameter)
    return main.detach()


@torch.no_grad()
def round_main_weight(parameter: torch.nn.Parameter) -> None:
    """Make a parameter its main weight, rounded."""
    main = getattr(parameter, _MAIN, None)
    if main is not None:
        parameter.copy_(main)
