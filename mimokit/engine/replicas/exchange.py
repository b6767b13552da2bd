"""What a rank of a replica exchanges with its peers, after the optimizer step of its replica."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mimokit.architecture.tensor_cut import Shape
from mimokit.config import StrategyConfig
from mimokit.config.strategy import TAKES
from mimokit.engine.collectives import gather_json
from mimokit.engine.device import rank_device
from mimokit.engine.models.weights import named_parameters
from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.engine.parallel.main_weights import (
    is_held_in_part,
    main_value,
    main_weight,
    state_shard,
)
from mimokit.engine.parallel.marks import shard_of
from mimokit.engine.parallel.update import Update
from mimokit.engine.replicas.world import Peers
from mimokit.engine.steps import Step, StepGenerator
from mimokit.engine.strategies import communicate
from mimokit.engine.strategies.buckets import Bucket, Shard
from mimokit.engine.strategies.demo import DeMoStrategy
from mimokit.engine.strategies.diloco import DiLoCoCommunicator, OuterWeights
from mimokit.engine.strategies.modules import (
    CommunicateOptimizeStrategy,
    CommunicationModule,
    PlannedModule,
    under,
)
from mimokit.engine.strategies.named import STRATEGIES
from mimokit.engine.strategies.optim import OptimSpec
from mimokit.engine.strategies.sparse_loco import SparseOuterCommunicator
from mimokit.engine.strategies.strategy import SimpleReduceStrategy, Strategy
from mimokit.planning.strategies.shards import in_order
from mimokit.step_kinds import StepKind


class ReplicaExchange:
    """Executes a strategy among the peers of this rank."""

    def __init__(self, peers: Peers, trained: Trained, update: Update) -> None:
        self.peers, self._stop = peers, False
        self._shard, self._update = trained.shard, update
        self._gathered = trained.gathered
        self._parameters = list(self._shard.parameters())
        self.strategy = strategy_of(peers.plan.config)
        self.strategy.seed = peers.plan.seed
        place = self._shard, peers.replica, peers.plan.replicas
        with communicate.among(peers.group):
            if isinstance(self.strategy, DeMoStrategy):
                self.strategy._init_node(*place)
                update.step_by(self.strategy.optim)
            else:
                self.strategy._init_exchange(*place)

    def reduce_gradients(self) -> StepGenerator[None]:
        """Average the gradients over the replicas, if the strategy does that. Collective."""
        if not isinstance(self.strategy, SimpleReduceStrategy) or self.peers.plan.replicas < 2:
            return
        yield Step(StepKind.EXCHANGE)
        gradients = list(self._update.gradients())
        if gradients:
            with communicate.among(self.peers.group):
                _average(gradients, self.peers.plan.replicas)

    def step(self) -> StepGenerator[None]:
        """Yield the steps of the update: the optimizer, what is due. Collective among the peers.

        The caller has begun the optimizer's step.
        """
        strategy, peers = self.strategy, self.peers
        if isinstance(strategy, DeMoStrategy) and not self._update.overflows_among(peers.sum):
            with self._update.reduced_gradients():
                strategy.optim.compress()
            yield Step(StepKind.EXCHANGE)
            with communicate.among(peers.group), strategy.ledger.counting("momentum"):
                strategy.optim.gather()
            yield Step(StepKind.OPTIMIZER)
        self._update.step()
        if isinstance(strategy, DeMoStrategy):
            self._update.publish()
        if self._due():
            yield Step(StepKind.EXCHANGE)
            for weight in self._gathered:
                weight.gather()
            with communicate.among(peers.group):
                for module in self._modules():
                    module.communicate(
                        self._shard, peers.replica, peers.plan.replicas, strategy.local_step
                    )
            for weight in self._gathered:
                weight.keep_own()
            self._update.publish()
        strategy.local_step += 1
        strategy.ledger.step = strategy.local_step + 1

    def _due(self) -> bool:
        """Return whether an exchange begins or ends after the optimizer step just done."""
        plan, step = self.strategy.plan, self.strategy.local_step + 1
        assert plan is not None
        return bool(self._modules() and (plan.begins(step) or plan.ends(step)))

    def end(self) -> None:
        """Wait for exchanges that go on in the background; their results are not written."""
        for module in self._planned():
            module.end()

    def _modules(self) -> list[CommunicationModule]:
        """Return what exchanges after a step of this rank."""
        strategy = self.strategy
        if not isinstance(strategy, CommunicateOptimizeStrategy) or not self._parameters:
            return []
        return strategy.communication_modules

    def kept(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return of each tensor what SparseLoCo or DeMo keeps from step to step."""
        if isinstance(self.strategy, DeMoStrategy):
            return self.strategy.kept()
        (module,) = self._modules()
        assert isinstance(module, SparseOuterCommunicator)
        return module.kept()

    def state(self) -> dict[str, torch.Tensor]:
        """Return what the next exchanges depend on; waits for those that are under way."""
        return {
            f"{number}/{name}": tensor
            for number, module in enumerate(self._planned())
            for name, tensor in module.state().items()
        }

    def go_on(self, step: int, saved: Mapping[str, torch.Tensor]) -> None:
        """Go on after so many steps from what `state` returned, with the weights of that moment.

        Collective where ranks have shards of weights.
        """
        self.strategy.local_step, self.strategy.ledger.step = step, step + 1
        for weight in self._gathered:
            weight.gather()
        for number, module in enumerate(self._planned()):
            module.go_on(under(f"{number}/", saved))

    def _planned(self) -> list[PlannedModule]:
        return [module for module in self._modules() if isinstance(module, PlannedModule)]

    def in_low_bits(self) -> Iterator[tuple[list[str], OuterWeights]]:
        """Yield outer weights whose changes are averaged in low bits, and their tensors' names."""
        for module in self._modules():
            if isinstance(module, DiLoCoCommunicator):
                for rule in module.rules:
                    part = module.parts[rule.index]
                    if part.low_bits is not None:
                        yield [name for name in rule.tensors if name in module.parameters], part

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


@torch.no_grad()
def _average(tensors: Sequence[torch.Tensor], replicas: int) -> None:
    """Make tensors their mean over the peers, in one collective."""
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
    """A copy in fp32 of a weight that no rank has whole in so many bits.

    Attributes:
        whole: what is exchanged.
    """

    parameter: torch.nn.Parameter
    whole: torch.nn.Parameter

    @classmethod
    def of(cls, parameter: torch.nn.Parameter) -> GatheredWeight:
        """Return it, with the value of the weight. Collective over the ranks with its shards."""
        return cls(parameter, torch.nn.Parameter(main_value(parameter).clone()))

    @torch.no_grad()
    def gather(self) -> None:
        """Take the value of the weight. Collective over the ranks with its shards."""
        self.whole.copy_(main_value(self.parameter))

    @torch.no_grad()
    def keep_own(self) -> None:
        """Let the entries that this rank steps be those of the copy."""
        shard = state_shard(self.parameter)
        assert shard is not None
        main_weight(self.parameter).copy_(shard.of(self.whole))


@dataclass(frozen=True)
class Trained:
    """What trains on a rank.

    Attributes:
        shard: the weights that are exchanged, in the most bits that there are of them.
        gathered: those of which ranks have shards, which are gathered for an exchange.
    """

    shard: Shard
    gathered: Sequence[GatheredWeight]


def trained_on_rank(modules: Mapping[str, ModuleDataParallel], config: StrategyConfig) -> Trained:
    """Return what trains on this rank. Collective over the ranks of the replica.

    Weights are gathered if the strategy exchanges them. Otherwise what this rank steps trains.
    """
    parameters = {
        f"{module}.{path}": parameter
        for module, wrapped in modules.items()
        for path, parameter in named_parameters(wrapped.module).items()
        if parameter.requires_grad
    }
    shards = {name: shard_of(parameter) for name, parameter in parameters.items()}
    gathered: dict[str, GatheredWeight] = {}
    if config.exchanges_weights:
        gathered = {
            name: GatheredWeight.of(parameter)
            for name, parameter in parameters.items()
            if state_shard(parameter) is not None and not _is_whole(parameter)
        }
        trained = {name: _whole_weight(parameter) for name, parameter in parameters.items()}
        trained |= {name: weight.whole for name, weight in gathered.items()}
        pieces = {}
    else:
        trained = {name: main_weight(parameter) for name, parameter in parameters.items()}
        own = {name: state_shard(parameter) for name, parameter in parameters.items()}
        pieces = {name: piece for name, piece in own.items() if piece is not None}
    wholes = {name: list(shard.cut.whole) for name, shard in shards.items()}
    everywhere: dict[str, Shape] = {
        name: tuple(shape) for rank in gather_json(wholes) for name, shape in rank.items()
    }
    shard = Shard(trained, shards, in_order(everywhere), pieces)
    return Trained(shard, list(gathered.values()))


def _is_whole(parameter: torch.nn.Parameter) -> bool:
    """Return whether a rank has all of a weight in fp32, which ranks gather after each step."""
    return parameter.dtype == torch.float32 and not is_held_in_part(parameter)


def _whole_weight(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    return main_weight(parameter) if state_shard(parameter) is None else parameter
