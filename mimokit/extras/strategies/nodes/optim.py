"""The optimizer that a strategy builds for the weights of a node, and learning rates over steps."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from mimokit.config.errors import ConfigError, Problem, unknown_name
from mimokit.config.strategy import OptimizerConfig
from mimokit.engine.optimizers import OPTIMIZERS


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

        Muon takes only matrices: embeddings, the last layer and everything of one dimension go to
        AdamW.
        """
        if not isinstance(model, nn.Module):
            return self.cls(model, **self.kwargs)
        parameters = [weight for weight in model.parameters() if weight.requires_grad]
        if self.cls is torch.optim.Muon:
            return _muon(model, parameters, self.kwargs)
        return self.cls(parameters, **self.kwargs)

    def __repr__(self) -> str:
        words = [self.cls.__name__, *(f"{key}={value}" for key, value in self.kwargs.items())]
        return f"OptimSpec({', '.join(words)})"


_CLASSES: dict[str, type[torch.optim.Optimizer]] = {**OPTIMIZERS, "muon": torch.optim.Muon}


def ensure_optim_spec(
    optim: str | OptimSpec | None, default: OptimSpec | None = None, **kwargs: Any
) -> OptimSpec:
    """Return a spec from a spec, a name, or None, which is the default (AdamW).

    Raises:
        ConfigError: it is none of these.
    """
    if optim is None:
        return default or OptimSpec(**kwargs)
    if isinstance(optim, str):
        return OptimSpec.from_string(optim, **kwargs)
    if not isinstance(optim, OptimSpec):
        name = optim.__name__ if isinstance(optim, type) else type(optim).__name__
        sentence = f"An optimizer is {name}; give OptimSpec({name}, lr=0.1) say, or a name."
        raise ConfigError([Problem("strategy", "optim_spec", name, sentence)])
    return optim


def _muon(
    model: nn.Module, parameters: list[nn.Parameter], kwargs: dict[str, Any]
) -> torch.optim.Optimizer:
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    apart = {id(linear[-1].weight)} if len(linear) > 1 else set()
    apart |= {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    matrices = [weight for weight in parameters if weight.ndim == 2 and id(weight) not in apart]
    inner = {id(weight) for weight in matrices}
    others = [weight for weight in parameters if id(weight) not in inner]
    shared = {key: kwargs[key] for key in ("lr", "weight_decay") if key in kwargs}
    built: list[torch.optim.Optimizer] = []
    if matrices:
        built.append(torch.optim.Muon(matrices, **kwargs))
    if others:
        built.append(torch.optim.AdamW(others, **shared))
    return Combined(built)


class Combined(torch.optim.Optimizer):
    """Optimizers over separate parameters that step together, under one scheduler."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = tuple(parts)
        self._share_groups()

    def _share_groups(self) -> None:
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step all of them."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all of them."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._share_groups()


LAMBDA_COSINE = "lambda_cosine"
LEAST = 0.1
"""Share of the learning rate that a cosine ends at."""


def build_scheduler(
    kind: str | type[LRScheduler] | None,
    optimizer: torch.optim.Optimizer,
    arguments: Mapping[str, Any],
    max_steps: int | None,
) -> LRScheduler | None:
    """Return the scheduler of an optimizer: "lambda_cosine", a class; None: a constant rate."""
    if kind is None:
        return None
    if isinstance(kind, str):
        if kind != LAMBDA_COSINE:
            raise _rejected(kind, f"write {LAMBDA_COSINE}, or give a class of torch")
        return LambdaLR(optimizer, lambda_cosine(max_steps, arguments))
    return kind(optimizer, **arguments)


def lambda_cosine(max_steps: int | None, arguments: Mapping[str, Any]) -> Callable[[int], float]:
    """Return the factor at a step counted from 0: a linear warm-up, then constant or a cosine.

    Raises:
        ConfigError: an unknown argument, or a cosine without an end.
    """
    unknown = set(arguments) - {"warmup_steps", "cosine_anneal", "max_steps"}
    if unknown:
        raise _rejected(
            ", ".join(sorted(unknown)), "its arguments are warmup_steps, cosine_anneal, max_steps"
        )
    warmup = int(arguments.get("warmup_steps", 1))
    ends = [steps for steps in (max_steps, arguments.get("max_steps")) if steps is not None]
    anneal = bool(arguments.get("cosine_anneal", False))
    if anneal and not ends:
        raise _rejected("cosine_anneal", "it needs max_steps")

    def factor(step: int) -> float:
        if step < warmup:
            return step / max(warmup, 1)
        if not anneal:
            return 1.0
        done = (step - warmup) / max(1, min(ends) - warmup)
        return (1 - LEAST) * 0.5 * (1 + math.cos(math.pi * done)) + LEAST

    return factor


def _rejected(value: str, right: str) -> ConfigError:
    sentence = f"lr_scheduler: {value} is not known; {right}."
    return ConfigError([Problem("strategy", "lr_scheduler", value, sentence)])
