"""SPARTA: the mean of a few entries of the weights, every step or every few; which entries."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mimokit.config.strategy import Selector, StrategyConfig
from mimokit.extras.strategies.exchanges import Exchange, Masks
from mimokit.extras.strategies.nodes.buckets import Shard, common_dtype
from mimokit.extras.strategies.nodes.modules import CommunicateOptimizeStrategy, SummedModule
from mimokit.extras.strategies.nodes.optim import OptimSpec


class IndexSelector(ABC):
    """Chooses entries. Random choices of a subclass are drawn alike on all nodes."""

    def __init__(self, p: float) -> None:
        self.p = p

    @abstractmethod
    def get_indices(self, param: Tensor, iteration: int) -> Tensor:
        """Return a mask of the shape of `param` for an exchange, counted from 0."""


class PlannedSelector(IndexSelector):
    """A selector that `StrategyPlan` knows; under a strategy its masks are those of the plan."""

    name: ClassVar[Selector]

    def __init__(self, p: float, seed: int = 42) -> None:
        super().__init__(p)
        self._masks = Masks(self.name, p, seed)
        self._seen: dict[int, str] = {}

    def get_indices(self, param: Tensor, iteration: int) -> Tensor:
        """Return a mask of the shape of `param` for an exchange, counted from 0."""
        tensor = self._seen.setdefault(id(param), str(len(self._seen)))
        mask = torch.zeros(param.numel(), dtype=torch.bool, device=param.device)
        indices = self._masks.indices(tensor, param.numel(), iteration)
        mask[torch.from_numpy(indices).to(param.device)] = True
        return mask.view(param.shape)


class RandomIndexSelector(PlannedSelector):
    """Each entry with probability p, drawn again each time."""

    name = "random"


class ShuffledSequentialIndexSelector(PlannedSelector):
    """One permutation for the whole run, in ceil(1 / p) chunks that take turns."""

    name = "shuffled_sequential"


class PartitionedIndexSelector(PlannedSelector):
    """As many classes in random order, drawn again after each cycle."""

    name = "partitioned"


SELECTORS: dict[str, type[PlannedSelector]] = {
    selector.name: selector
    for selector in (RandomIndexSelector, ShuffledSequentialIndexSelector, PartitionedIndexSelector)
}

Selected = str | IndexSelector | type[IndexSelector] | None


class SparseCommunicator(SummedModule):
    """Averages the entries that a mask selects, over all nodes."""

    def __init__(self, index_selector: IndexSelector, rule: int | None = None) -> None:
        super().__init__(rule)
        self.index_selector = index_selector

    def _init_node(self, model: nn.Module, rank: int, num_nodes: int) -> None:
        super()._init_node(model, rank, num_nodes)
        self._shard = model if isinstance(model, Shard) else None

    @torch.no_grad()
    def given(self, exchange: Exchange) -> Tensor:
        """Return the selected entries."""
        kind = common_dtype(self.parameters.values())
        values = [
            torch.take(weight, self._indices(exchange, name)).to(kind)
            for name, weight in self.parameters.items()
        ]
        return torch.cat(values) if values else torch.empty(0)

    def write(self, exchange: Exchange, flat: Tensor, members: int) -> None:
        """Write their means."""
        if members < 2:
            return
        flat /= members
        places = {name: self._indices(exchange, name) for name in self.parameters}
        parts = flat.split_with_sizes([len(of_tensor) for of_tensor in places.values()])
        for (name, weight), part in zip(self.parameters.items(), parts, strict=True):
            weight.put_(places[name], part.to(weight.dtype))

    def _indices(self, exchange: Exchange, name: str) -> Tensor:
        parameter = self.parameters[name]
        if isinstance(self.index_selector, PlannedSelector):
            planned = self.plan.indices(exchange, name)
            assert planned is not None
            if self._shard is not None:
                planned = self._shard.places(name, planned)
            return torch.from_numpy(planned).to(parameter.device)
        with torch.random.fork_rng():
            torch.manual_seed(self.plan.seed * 1_000_003 + exchange.number)  # alike on all nodes
            mask = self.index_selector.get_indices(parameter, exchange.number)
        return mask.reshape(-1).nonzero().squeeze(1)


def selector_of(selected: Selected, p: float) -> IndexSelector:
    """Return a selector from an object, a class, a name, or None, which is random."""
    if isinstance(selected, IndexSelector):
        return selected
    if isinstance(selected, str):
        return SELECTORS[StrategyConfig(name="sparta", index_selector=selected).index_selector](p)  # type: ignore[arg-type]
    return (selected or RandomIndexSelector)(p)


def sparse_arguments(selector: IndexSelector, sparta_interval: int) -> dict[str, Any]:
    """Return what the config says of SPARTA."""
    known = isinstance(selector, PlannedSelector)
    return {
        "p_sparta": selector.p,
        "sparta_interval": sparta_interval,
        "index_selector": selector.name if known else "random",  # type: ignore[attr-defined]
    }


class SPARTAStrategy(CommunicateOptimizeStrategy):
    """Sparse averaging of weights."""

    def __init__(
        self,
        optim_spec: str | OptimSpec | None = None,
        p_sparta: float = 0.005,
        sparta_interval: int = 1,
        index_selector: Selected = None,
        delay: int = 0,
        fault_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        """Take the share of the entries, how often and which.

        A selector that is an object has its share in it. The mean taken at a step is written
        `delay` steps later. With probability `fault_rate` an exchange is left out on all nodes.
        """
        StrategyConfig(name="sparta", p_sparta=p_sparta)
        selector = selector_of(index_selector, p_sparta)
        super().__init__([SparseCommunicator(selector)], optim_spec=optim_spec, **kwargs)
        self.config = StrategyConfig(
            name="sparta", delay=delay, fault_rate=fault_rate,
            **sparse_arguments(selector, sparta_interval),
        )  # fmt: skip
