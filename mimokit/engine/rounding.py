"""Changes weights by a rounding, to see what a rounding changes."""

from collections.abc import Iterable

import torch


@torch.no_grad()
def nudge_weights(parameters: Iterable[torch.nn.Parameter], seed: int) -> None:
    """Change weights by a unit in the last place: each up, down or not at all."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        ways = torch.randint(-1, 2, parameter.shape, generator=generator)
        unit = torch.finfo(parameter.dtype).eps
        parameter.mul_(1 + unit * ways.to(parameter))
