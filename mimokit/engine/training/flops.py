"""Model FLOPs of a training step, by the tokens that its modules computed."""

from collections.abc import Mapping
from dataclasses import dataclass

from mimokit.architecture import model_of_config
from mimokit.architecture.flops import ForwardFlops, forward_flops, passes
from mimokit.architecture.layers_on_stage import layers_of
from mimokit.architecture.modules import Module
from mimokit.architecture.tokens import geometry_of
from mimokit.config import ExperimentSections
from mimokit.planning.types import LayoutPlan


@dataclass(frozen=True)
class _ModuleFlops:
    per_token: float
    on_rank: float


class StepFlops:
    """Operations of a step: of modules, over all ranks, and of one rank.

    Images and recordings count as if all had full size, by the tokens that they become: images
    smaller than the largest have less attention than is counted. A rank's share is that of its
    stage, divided by the ranks of the stage. Modules behind the language model are not counted.
    """

    def __init__(self, config: ExperimentSections, plan: LayoutPlan, rank: int) -> None:
        model = model_of_config(config.model)
        encoders, frozen = [b.name for b in model.branches], config.model.frozen_modules
        self._modules: dict[str, _ModuleFlops] = {}
        modules: tuple[Module, ...] = (*model.branches, model.language)
        for module in modules:
            name = module.name
            length, tokens = _item(config, name)
            before = encoders if name == plan.llm_module_name else ()
            factor = passes(name, frozen, before) / tokens
            flops = forward_flops(module, length, 1.0, tokens)
            share = _on_rank(module, flops, plan, rank)
            self._modules[name] = _ModuleFlops(factor * flops.total, factor * share)

    def of_modules(self, tokens: Mapping[str, int]) -> dict[str, float]:
        """Return module -> operations of a step; operations and tokens are those of all ranks."""
        modules = self._modules.items()
        return {name: flops.per_token * tokens[name] for name, flops in modules if name in tokens}

    def of_rank(self, tokens: Mapping[str, int]) -> float:
        """Return the operations of this rank in a step."""
        return sum(flops.on_rank * tokens.get(name, 0) for name, flops in self._modules.items())


def _item(config: ExperimentSections, name: str) -> tuple[int, int]:
    if name == config.model.llm_module_name:
        return config.data.seq_length, config.data.seq_length
    geometry = geometry_of(config.model.get_architecture(name))
    return geometry.positions, geometry.tokens


def _on_rank(module: Module, flops: ForwardFlops, plan: LayoutPlan, rank: int) -> float:
    ranks = plan.modules[module.name]
    if rank not in ranks.ranks:
        return 0.0
    stage, stages = ranks.coordinates(rank)["pp"], ranks.pipeline_parallel
    sizes = plan.executions[module.name].sizes
    layers = float(layers_of(module, sizes, stage).total) / module.net.layers
    operations = layers * (flops.layers + flops.core)
    operations += flops.first * (stage == 0) + flops.last * (stage == stages - 1)
    return operations / ranks.ranks_per_stage
