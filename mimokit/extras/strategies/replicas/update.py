"""The update of a replica: that of its layout, and what it exchanges with its peers around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from mimokit.architecture.tensor_cut import Shape
from mimokit.config import StrategyConfig
from mimokit.config.strategy import TAKES
from mimokit.engine import parallel
from mimokit.engine.collectives import gather_json
from mimokit.engine.device import rank_device
from mimokit.engine.models import named_parameters
from mimokit.engine.run_of_rank import Peers
from mimokit.engine.steps import Step, StepGenerator
from mimokit.extras.strategies.exchanges.shapes import in_order
from mimokit.extras.strategies.nodes import communicate
from mimokit.extras.strategies.nodes.buckets import Bucket, Shard
from mimokit.extras.strategies.nodes.modules import CommunicateOptimizeStrategy, SummedModule, under
from mimokit.extras.strategies.nodes.optim import OptimSpec
from mimokit.extras.strategies.nodes.strategy import Strategy
from mimokit.extras.strategies.nodes.strategy_names import STRATEGIES
from mimokit.extras.strategies.replicas.plan import ExchangingReplicas
from mimokit.step_kinds import StepKind


class ReplicaUpdate(parallel.MainGradUpdate):
    """Steps as the layout alone does, and exchanges entry by entry with the peers of this rank."""

    peers: Peers

    def __init__(self, *of_layout: Any, peers: Peers, trained: Trained) -> None:
        super().__init__(*of_layout)
        self.peers, self._stop = peers, False
        self.shard, self._gathered = trained.shard, trained.gathered
        assert isinstance(peers.plan, ExchangingReplicas)
        self.strategy = strategy_of(peers.plan.config)
        self.strategy.seed = peers.plan.seed
        with communicate.among(peers.group):
            self.strategy._init_exchange(self.shard, peers.replica, peers.plan.replicas)

    def exchange_gradients(self) -> StepGenerator[None]:
        """Average the gradients over the replicas, if the strategy does that. Collective."""
        if not self.peers.plan.config.averages_gradients or self.peers.plan.replicas < 2:
            return
        yield Step(StepKind.EXCHANGE)
        gradients = list(self.gradients())
        if gradients:
            with communicate.among(self.peers.group):
                _average(gradients, self.peers.plan.replicas)

    def gradients(self) -> Iterator[torch.Tensor]:
        """Yield the reduced gradients that this rank has."""
        for module, _ in self._modules:
            yield from module.reduced_gradients()

    def exchange_weights(self) -> StepGenerator[None]:
        """Exchange what is due after the optimizer's step. Collective among the peers."""
        plan, strategy = self.strategy.plan, self.strategy
        assert plan is not None
        step, modules = strategy.local_step + 1, self._communicating()
        if modules and (plan.begins(step) or plan.ends(step)):
            yield Step(StepKind.EXCHANGE)
            for weight in self._gathered:
                weight.gather()
            with communicate.among(self.peers.group):
                for module in modules:
                    module.communicate(
                        self.shard, self.peers.replica, self.peers.plan.replicas, step - 1
                    )
            for weight in self._gathered:
                weight.keep_own()
            self.publish()
        strategy.local_step = step
        strategy.ledger.step = step + 1

    def _communicating(self) -> list[SummedModule]:
        return communicating(self.strategy) if any(True for _ in self.shard.parameters()) else []

    def end(self) -> None:
        """Wait for exchanges that go on in the background; their results are not written."""
        for module in self._communicating():
            module.end()

    def exchanged(self) -> dict[str, torch.Tensor]:
        """Return what the next exchanges depend on; waits for those that are under way."""
        return {
            f"{number}/{name}": tensor
            for number, module in enumerate(self._communicating())
            for name, tensor in module.state().items()
        }

    def go_on_exchanging(self, step: int, saved: Mapping[str, torch.Tensor]) -> None:
        """Go on after so many steps from what `exchanged` returned. Collective as `gather` is."""
        self.strategy.local_step, self.strategy.ledger.step = step, step + 1
        for weight in self._gathered:
            weight.gather()
        for number, module in enumerate(self._communicating()):
            module.go_on(under(f"{number}/", saved))

    def stops(self, stop: bool) -> bool:
        """Return whether all replicas stop after this step. Collective where an exchange was due.

        A replica that stopped between two exchanges would leave the others waiting for it: a
        request (`stop`) takes effect after the next one.
        """
        self._stop |= stop
        assert self.strategy.plan is not None
        if not self.strategy.plan.begins(self.strategy.local_step):
            return False
        flag = torch.tensor([float(self._stop)], device=rank_device())
        self.peers.sum(flag)
        return bool(flag.item())


def update_of_replica(
    peers: Peers, modules: Mapping[str, parallel.ModuleDataParallel]
) -> Callable[..., ReplicaUpdate]:
    """Return what takes the arguments of `MainGradUpdate`. Collective over the replica's ranks."""
    return partial(ReplicaUpdate, peers=peers, trained=trained_on_rank(modules, peers.plan.config))


def communicating(strategy: Strategy) -> list[SummedModule]:
    """Return what exchanges after a step of a strategy that runs between replicas."""
    if not isinstance(strategy, CommunicateOptimizeStrategy):
        return []
    return [module for module in strategy.communication_modules if isinstance(module, SummedModule)]


@torch.no_grad()
def _average(tensors: Sequence[torch.Tensor], replicas: int) -> None:
    bucket = Bucket(tensors)
    bucket.fill(tensors)
    communicate.all_reduce(bucket.flat)
    bucket.flat /= replicas
    bucket.write(tensors)


def strategy_of(config: StrategyConfig) -> Strategy:
    """Return the strategy that a config file describes."""
    arguments: dict[str, Any] = {
        field: getattr(config, field)
        for field in TAKES[config.name]
        if field not in ("inner_optimizer", "outer_optimizer")
    }
    if config.outer_optimizer is not None:
        arguments["outer_optim_spec"] = OptimSpec.from_config(config.outer_optimizer)
    return STRATEGIES[config.name](**arguments)


@dataclass(frozen=True)
class GatheredWeight:
    """A copy in fp32 of a weight that no rank has whole in so many bits."""

    parameter: torch.nn.Parameter
    whole: torch.nn.Parameter

    @classmethod
    def of(cls, parameter: torch.nn.Parameter) -> GatheredWeight:
        """Return it, with the value of the weight. Collective over the ranks with its shards."""
        return cls(parameter, torch.nn.Parameter(parallel.main_value(parameter).clone()))

    @torch.no_grad()
    def gather(self) -> None:
        """Take the value of the weight. Collective over the ranks with its shards."""
        self.whole.copy_(parallel.main_value(self.parameter))

    @torch.no_grad()
    def keep_own(self) -> None:
        """Let the entries that this rank steps be those of the copy."""
        shard = parallel.state_shard(self.parameter)
        assert shard is not None
        parallel.main_weight(self.parameter).copy_(shard.of(self.whole))


@dataclass(frozen=True)
class Trained:
    """What trains on a rank.

    Attributes:
        gathered: those of which ranks have shards, which are gathered for an exchange.
    """

    shard: Shard
    gathered: Sequence[GatheredWeight]


def trained_on_rank(
    modules: Mapping[str, parallel.ModuleDataParallel], config: StrategyConfig
) -> Trained:
    """Return what trains on this rank. Collective over the ranks of the replica.

    Where a strategy exchanges weights, those are gathered of which ranks have shards.
    """
    parameters = {
        f"{module}.{path}": parameter
        for module, wrapped in modules.items()
        for path, parameter in named_parameters(wrapped.module).items()
        if parameter.requires_grad
    }
    shards = {name: parallel.shard_of(parameter) for name, parameter in parameters.items()}
    gathered: dict[str, GatheredWeight] = {}
    if not config.averages_gradients:
        gathered = {
            name: GatheredWeight.of(parameter)
            for name, parameter in parameters.items()
            if parallel.state_shard(parameter) is not None and not _is_whole(parameter)
        }
        trained = {name: _whole_weight(parameter) for name, parameter in parameters.items()}
        trained |= {name: weight.whole for name, weight in gathered.items()}
    else:
        trained = {name: parallel.main_weight(parameter) for name, parameter in parameters.items()}
    wholes = {name: list(shard.cut.whole) for name, shard in shards.items()}
    everywhere: dict[str, Shape] = {
        name: tuple(shape) for rank in gather_json(wholes) for name, shape in rank.items()
    }
    return Trained(Shard(trained, shards, in_order(everywhere)), list(gathered.values()))


def _is_whole(parameter: torch.nn.Parameter) -> bool:
    return parameter.dtype == torch.float32 and not parallel.is_held_in_part(parameter)


def _whole_weight(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    return parallel.main_weight(parameter) if parallel.state_shard(parameter) is None else parameter
