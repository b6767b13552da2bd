"""What the next steps of a strategy depend on, as values that reading a checkpoint only reads.

These are numbers, texts, tensors, and lists and mappings of them; optimizers and schedulers have a
state of their own. Every other attribute is what the constructor and `_init_node` make it.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler


def state_of(owner: object, without: Collection[str] = ()) -> dict[str, Any]:
    """Return what an object keeps, by the names of its attributes."""
    state = {}
    for name, value in vars(owner).items():
        if isinstance(value, torch.optim.Optimizer | LRScheduler):
            state[name] = value.state_dict()
        elif name not in without and _is_plain(value):
            state[name] = value
    return state


@torch.no_grad()
def take_state(owner: object, state: Mapping[str, Any]) -> None:
    """Give an object that has begun what `state_of` returned."""
    for name, saved in state.items():
        current = getattr(owner, name, None)
        if isinstance(current, torch.optim.Optimizer):
            _load_optimizer(current, saved)
        elif isinstance(current, LRScheduler):
            current.load_state_dict(saved)
        else:
            setattr(owner, name, _taken(current, saved))


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, Tensor):
        return not isinstance(value, nn.Parameter)  # those are the model's
    return value is None or isinstance(value, bool | int | float | str)


def _taken(current: Any, saved: Any) -> Any:
    """Return a saved value; a tensor takes its numbers, since others may be views of it."""
    if isinstance(saved, Tensor) and isinstance(current, Tensor) and current.shape == saved.shape:
        return current.copy_(saved)
    if isinstance(saved, list) and isinstance(current, list) and len(saved) == len(current):
        return [_taken(*pair) for pair in zip(current, saved, strict=True)]
    if isinstance(saved, dict) and isinstance(current, dict):
        return {key: _taken(current.get(key), value) for key, value in saved.items()}
    return saved


def _load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    optimizer.load_state_dict(saved)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for number, state in saved.get("state", {}).items():
        for key, value in state.items():
            if isinstance(value, Tensor):  # torch has rounded it to the type of the weight
                optimizer.state[weights[number]][key] = value
