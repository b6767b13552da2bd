"""FedAvg and NoLoCo: means of weights in groups of nodes that are drawn again each time."""

from typing import Any

import torch
from torch import Tensor, nn

from mimokit.config.strategy import StrategyConfig, Weighting
from mimokit.extras.strategies.exchanges import Exchange
from mimokit.extras.strategies.nodes import communicate
from mimokit.extras.strategies.nodes.buckets import Bucket
from mimokit.extras.strategies.nodes.modules import (
    CommunicateOptimizeStrategy,
    PlannedModule,
    SummedModule,
)
from mimokit.extras.strategies.nodes.optim import OptimSpec


class AveragingCommunicator(SummedModule):
    """Averages weights; optimizers keep their state."""

    def _init_node(self, model: nn.Module, rank: int, num_nodes: int) -> None:
        super()._init_node(model, rank, num_nodes)
        self._weights = list(self.parameters.values())
        self._weighted = self.plan.config.weighting == "samples"
        self._bucket = Bucket(self._weights, extra=int(self._weighted))

    @torch.no_grad()
    def given(self, exchange: Exchange) -> Tensor:
        """Return the weights, times the samples behind them."""
        flat = self._bucket.flat
        self._bucket.fill(self._weights)
        if self._weighted:
            flat[-1] = 1
            flat *= self.samples or 1
            self.samples = 0
        return flat

    def write(self, exchange: Exchange, flat: Tensor, members: int) -> None:
        """Write the mean of the island."""
        if members > 1:
            flat /= flat[-1].clone() if self._weighted else members
            self._bucket.write(self._weights)


class FedAvgStrategy(CommunicateOptimizeStrategy):
    """Federated averaging among all nodes, or among islands that are drawn again each time."""

    def __init__(
        self,
        optim_spec: str | OptimSpec | None = None,
        H: int = 1,
        island_size: int | None = None,
        sync_offset: int = 0,
        weighting: Weighting = "equal",
        **kwargs: Any,
    ) -> None:
        """Take the local optimizer, steps between exchanges, and which nodes exchange.

        `weighting="samples"` weighs nodes by `count_samples`.
        """
        super().__init__([AveragingCommunicator()], optim_spec=optim_spec, **kwargs)
        self.config = StrategyConfig(
            name="fedavg", H=H, island_size=island_size, sync_offset=sync_offset,
            weighting=weighting,
        )  # fmt: skip


class GossipCommunicator(PlannedModule):
    """Steps outer weights by what a group of nodes has changed, without an all-reduce."""

    def _init_node(self, model: nn.Module, rank: int, num_nodes: int) -> None:
        super()._init_node(model, rank, num_nodes)
        self._weights = list(self.parameters.values())
        self._bucket = Bucket(self._weights)
        self._bucket.fill(self._weights)
        self.outer = self._bucket.flat.clone()
        self.momentum = torch.zeros_like(self.outer)

    def kept_tensors(self) -> dict[str, Tensor]:
        """Return the outer weights and their momentum."""
        return {"outer": self.outer, "momentum": self.momentum}

    @torch.no_grad()
    def begin(self, exchange: Exchange) -> Tensor:
        """Return the mean change and the mean outer weights of the group, one after the other."""
        group = exchange.group_of(self.rank)
        self._bucket.fill(self._weights)
        both = torch.cat([self._bucket.flat - self.outer, self.outer])
        communicate.sum_among(both, group, "gossip")
        return both / len(group)

    @torch.no_grad()
    def finish(self, exchange: Exchange, taken: Tensor) -> None:
        """Step the outer weights, and go on from them."""
        config = self.plan.config
        change, mean = taken.tensor_split(2)
        pull = config.outer_lr if config.gossip is None else config.gossip
        self.momentum.mul_(config.momentum).add_(change, alpha=config.outer_lr)
        self.momentum.add_(mean - self.outer, alpha=pull)
        self.outer += self.momentum
        self._bucket.flat.copy_(self.outer)
        self._bucket.write(self._weights)


class NoLoCoStrategy(CommunicateOptimizeStrategy):
    """NoLoCo (arXiv 2506.10911): a node that is left over gossips with itself."""

    def __init__(
        self,
        optim_spec: str | OptimSpec | None = None,
        H: int = 100,
        group_size: int = 2,
        momentum: float = 0.5,
        outer_lr: float = 0.7,
        gossip: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Take the local optimizer and the outer step; `gossip` None: as `outer_lr`."""
        super().__init__([GossipCommunicator()], optim_spec=optim_spec, **kwargs)
        self.config = StrategyConfig(
            name="noloco", H=H, momentum=momentum, outer_lr=outer_lr, gossip=gossip,
            group_size=group_size,
        )  # fmt: skip
