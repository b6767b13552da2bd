"""How many tokens each expert of a mixture took in a step, over all ranks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mimokit.config import ModelSection
from mimokit.engine.models.experts import LayoutFreeRouter, routers_of
from mimokit.engine.pipeline.model import RankModel
from mimokit.samples import ModuleSample, StepSample, expert_column


@dataclass(frozen=True)
class _Mixture:
    layers: int
    dense_layers: int
    experts: int
    top_k: int
    routers: Mapping[int, LayoutFreeRouter]

    @property
    def numbers(self) -> int:
        return (self.layers - self.dense_layers) * self.experts

    def take(self) -> Iterator[float]:
        """Yield the tokens of every expert of every layer; the routers count from zero again."""
        for layer in range(self.dense_layers, self.layers):
            router = self.routers.get(layer + 1)
            if router is None:
                yield from [0.0] * self.experts
            else:
                yield from map(float, router.load.tolist())
                router.load.zero_()


class ExpertLoads:
    """Counts the tokens of experts on this rank, as numbers that ranks add up."""

    def __init__(self, model: RankModel, config: ModelSection) -> None:
        modules, self._encoders = model.modules(), frozenset(config.encoder_module_names)
        self._mixtures = {
            name: _Mixture(
                network.num_layers + network.next_token_layers,
                network.dense_layers,
                network.num_moe_experts,
                network.top_k,
                routers_of(modules[name].module) if name in modules else {},
            )
            for name, network in config.module_architectures.items()
            if network.num_moe_experts is not None
        }

    def to_sum(self) -> list[float]:
        """Return the tokens of this rank since the last call, for every expert of every layer."""
        return [number for mixture in self._mixtures.values() for number in mixture.take()]

    def of_step(
        self, summed: Sequence[float], tokens: Mapping[str, int]
    ) -> dict[str, NDArray[np.float64]]:
        """Return module -> load of every expert, [layers, experts]: 1 where all have equally much.

        Args:
            summed: `to_sum` over all ranks.
            tokens: module -> tokens of the step; of encoders rows that they hand on, so that their
                loads are next to the mean.
        """
        loads, rest = {}, np.asarray(summed)
        for name, mixture in self._mixtures.items():
            of_module, rest = np.split(rest, [mixture.numbers])
            of_layers = of_module.reshape(-1, mixture.experts)
            even = np.full((len(of_layers), 1), tokens.get(name, 0) * mixture.top_k)
            if name in self._encoders:
                even = of_layers.sum(1, keepdims=True)
            loads[name] = of_layers / np.maximum(even / mixture.experts, 1.0)
        return loads


def with_loads(sample: StepSample, loads: Mapping[str, NDArray[np.float64]]) -> StepSample:
    """Return a sample with the load of every expert over all layers, and the largest of a layer."""
    further, modules = dict(sample.further), dict(sample.modules)
    for name, of_layers in loads.items():
        if of_layers.size:
            means = of_layers.mean(axis=0).tolist()
            further |= {expert_column(name, number): load for number, load in enumerate(means)}
            of_module = modules.get(name, ModuleSample())
            modules[name] = replace(of_module, busiest_expert=float(of_layers.max()))
    return replace(sample, further=further, modules=modules)
