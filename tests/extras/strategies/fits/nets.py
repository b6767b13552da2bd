"""A small network and data for fits."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from mimokit.engine.strategies import log_metrics
from mimokit.experiment import Trainer


class Net(nn.Module):
    """Dropout, buffers of both kinds, and a metric."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(6, width)
        self.dropout = nn.Dropout(0.2)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        out = self.norm(self.dropout(self.first(x)))
        log_metrics(size=out.abs().mean())
        return nn.functional.mse_loss(out, y)


class Linear(nn.Module):
    """What a loop of a few lines trains alike."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.mse_loss(self.layer(batch[0]), batch[1])


def net(kind: type[nn.Module] = Net) -> Any:
    torch.manual_seed(0)
    return kind()


def samples(count: int, seed: int = 0) -> TensorDataset:
    draws = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(count, width, generator=draws) for width in (6, 3))
    return TensorDataset(x, y)


def trainer(cluster: Any, kind: type[nn.Module] = Net, count: int = 40) -> Trainer:
    return Trainer(net(kind), samples(count), samples(20, 1), cluster=cluster)


def places(folder: Path) -> dict[str, Any]:
    return {"log_dir": folder / "logs", "save_dir": folder / "checkpoints"}


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: one.clone() for name, one in model.state_dict().items()}


def equal(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)
