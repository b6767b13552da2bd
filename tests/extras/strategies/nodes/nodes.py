"""A small network of every kind of weight, and nodes that train it under a strategy."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import mimokit.engine.strategies as of_package
from mimokit.engine.strategies import OptimSpec, Strategy, ensure_optim_spec
from mimokit.extras.strategies.nodes.buckets import trainable
from mimokit.extras.strategies.nodes.communicate import all_reduce

SEED = 5


class MyStrategy(Strategy):
    """As the source document teaches it."""

    def __init__(self, optim_spec: Any = None, max_norm: float | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.optim_spec = ensure_optim_spec(optim_spec, OptimSpec(torch.optim.AdamW))
        self.max_norm = max_norm

    def _init_node(self, model: nn.Module, rank: int, num_nodes: int) -> None:
        super()._init_node(model, rank, num_nodes)
        self.optim = self.optim_spec.build(model)
        self._setup_scheduler()

    def step(self) -> None:
        for p in self.model.parameters():
            if p.grad is not None:
                all_reduce(p.grad)
                p.grad.div_(self.num_nodes)
        if self.max_norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.optim.step()
        super().step()


class Net(nn.Module):
    """Three, two, one and no dimensions; a weight without gradient, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3)
        self.layers = nn.ModuleList([nn.Linear(16, 12), nn.Linear(12, 12)])
        self.head = nn.Linear(12, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Parameter(torch.ones(5))
        self.frozen = nn.Parameter(torch.ones(7), requires_grad=False)

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        x = self.conv(x.unsqueeze(1)).flatten(1) * self.frozen[0]
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return nn.functional.mse_loss(self.head(x) * self.scale, y)


def net(dtype: torch.dtype = torch.float32) -> Net:
    torch.manual_seed(0)
    return Net().to(dtype)


def batch(node: int, step: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(1000 * node + step)
    x = torch.randn(8, 6, generator=draws, dtype=torch.float64)
    y = torch.randn(8, 3, generator=draws, dtype=torch.float64)
    return x.to(dtype), (y + node).to(dtype)


def flat(model: nn.Module) -> Tensor:
    """Return a copy of what trains, as one vector."""
    return torch.cat([one.detach().reshape(-1) for one in trainable(model).values()])


@dataclass(frozen=True)
class Case:
    """A strategy, by its class's name, and what it is given.

    Attributes:
        kind: the class.
        arguments: of the class.
        steps: to train.
        dtype: of the model.
    """

    kind: str
    arguments: dict[str, Any] = field(default_factory=dict)
    steps: int = 9
    dtype: torch.dtype = torch.float32

    def strategy(self) -> Strategy:
        made: Strategy = getattr(of_package, self.kind)(**self.arguments)
        made.seed = SEED
        return made


@dataclass(frozen=True)
class Outcome:
    """What a node ends with: weights after each step, and what it has exchanged."""

    weights: list[Tensor]
    messages: list[Any]


def train(case: Case, rank: int, num_nodes: int) -> Outcome:
    strategy, model = case.strategy(), net(case.dtype)
    strategy._init_node(model, rank, num_nodes)
    weights = []
    for step in range(case.steps):
        strategy.zero_grad()
        model(batch(rank, step, case.dtype)).backward()
        strategy.step()
        weights.append(flat(model))
    return Outcome(weights, strategy.ledger.messages)


def train_all(cases: Sequence[Case]) -> list[Outcome]:
    torch.set_num_threads(1)
    return [train(case, dist.get_rank(), dist.get_world_size()) for case in cases]
