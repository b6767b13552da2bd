"""Which optimizer a strategy builds for the weights of a node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import nn

from mimokit.config.errors import unknown_name
from mimokit.config.strategy import OptimizerConfig
from mimokit.engine.strategies.combined import Combined


class OptimSpec:
    """An optimizer's class and arguments: `OptimSpec(torch.optim.AdamW, lr=3e-4)`."""

    def __init__(self, cls: type[torch.optim.Optimizer] | None = None, **kwargs: Any) -> None:
        """Take a class of torch, AdamW by default, and its arguments."""
        self.cls = cls or torch.optim.AdamW
        self.kwargs = kwargs

    @classmethod
    def from_string(cls, name: str, **kwargs: Any) -> Self:
        """Return the spec of adam, adamw, sgd, rmsprop, adagrad or muon.

        Raises:
            ConfigError: the optimizer does not exist; offers the nearest name.
        """
        if name.lower() not in _CLASSES:
            raise unknown_name("Optimizer", name, _CLASSES)
        return cls(_CLASSES[name.lower()], **kwargs)

    @classmethod
    def from_config(cls, config: OptimizerConfig) -> Self:
        """Return the spec of what a file says."""
        return cls.from_string(
            config.name, **config.model_dump(exclude_none=True, exclude={"name"})
        )

    def build(
        self, model: nn.Module | Iterable[nn.Parameter] | Iterable[dict[str, Any]]
    ) -> torch.optim.Optimizer:
        """Build the optimizer over what trains in a model, or over parameters or groups of torch.

        Muon takes matrices alone: embeddings, the last layer and everything of one dimension go to
        AdamW.
        """
        if not isinstance(model, nn.Module):
            return self.cls(model, **self.kwargs)
        parameters = [one for one in model.parameters() if one.requires_grad]
        if self.cls is torch.optim.Muon:
            return _muon(model, parameters, self.kwargs)
        return self.cls(parameters, **self.kwargs)

    def __repr__(self) -> str:
        words = [self.cls.__name__, *(f"{key}={value}" for key, value in self.kwargs.items())]
        return f"OptimSpec({', '.join(words)})"


_CLASSES: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "muon": torch.optim.Muon,
}


def ensure_optim_spec(
    optim: str | OptimSpec | None, default: OptimSpec | None = None, **kwargs: Any
) -> OptimSpec:
    """Return a spec from a spec, a name, or None, which is the default (AdamW)."""
    if optim is None:
        return default or OptimSpec(**kwargs)
    return OptimSpec.from_string(optim, **kwargs) if isinstance(optim, str) else optim


def _muon(
    model: nn.Module, parameters: list[nn.Parameter], kwargs: dict[str, Any]
) -> torch.optim.Optimizer:
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    apart = {id(linear[-1].weight)} if len(linear) > 1 else set()
    apart |= {id(one.weight) for one in model.modules() if isinstance(one, nn.Embedding)}
    matrices = [one for one in parameters if one.ndim == 2 and id(one) not in apart]
    inner = {id(one) for one in matrices}
    others = [one for one in parameters if id(one) not in inner]
    shared = {key: kwargs[key] for key in ("lr", "weight_decay") if key in kwargs}
    built: list[torch.optim.Optimizer] = []
    if matrices:
        built.append(torch.optim.Muon(matrices, **kwargs))
    if others:
        built.append(torch.optim.AdamW(others, **shared))
    return Combined(built)
