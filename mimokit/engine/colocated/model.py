"""A multimodal model in the modes in which modules share their ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch.distributed as dist

from mimokit.architecture.tokens import tokens_per_item
from mimokit.config import MimoParallelismConfig
from mimokit.config.user_code import NO_CODE, ForwardStep, OwnLoss, UserCode
from mimokit.engine.colocated.bridge import ColocatedBridgeCommunicator
from mimokit.engine.megatron import HyperCommGrid, MimoModel, ProcessGroupCollection
from mimokit.engine.models.specs import multimodal_provider
from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.planning.types import LayoutPlan


@dataclass(frozen=True)
class ColocatedModel:
    """A model on this rank, with everything that a schedule needs to run it.

    Attributes:
        plan: the planned layout.
        model: Megatron's `MimoModel`, its modules wrapped with data parallel.
        module_to_grid_map: the grid of every module.
        topology: module -> the modules it feeds.
        pg_collections: the process groups of the modules on this rank.
        bridges: encoder -> the communicator between it and the language model.
        tokens_per_item: encoder -> number of embeddings per item, unless the batch contains it.
        frozen: the modules that are not trained.
        loss_func: of the user, if there is one.
        forward_step: of the user, if there is one.
    """

    plan: LayoutPlan
    model: MimoModel
    module_to_grid_map: dict[str, HyperCommGrid]
    topology: dict[str, list[str]]
    pg_collections: dict[str, ProcessGroupCollection]
    bridges: dict[str, ColocatedBridgeCommunicator]
    tokens_per_item: dict[str, int] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    loss_func: OwnLoss | None = None
    forward_step: ForwardStep | None = None

    @property
    def language_module_name(self) -> str:
        """The module that all encoders feed."""
        return self.plan.llm_module_name

    @property
    def loss_module_name(self) -> str:
        """The module of this rank that computes a loss."""
        return self.plan.llm_module_name

    @property
    def special_token_ids(self) -> dict[str, int]:
        """modality -> the placeholder token its embeddings replace."""
        return dict(self.model.special_token_ids)

    def modules(self) -> dict[str, ModuleDataParallel]:
        """The wrapped modules on this rank by name, in the order of the plan."""
        modules = {**self.model.modality_submodules}
        modules[self.language_module_name] = self.model.language_model
        return {name: modules[name] for name in self.plan.modules if name in modules}


def build_colocated_model(
    model_config: MimoParallelismConfig,
    plan: LayoutPlan,
    seed: int = 1234,
    code: UserCode = NO_CODE,
) -> ColocatedModel:
    """Build a model whose modules share all ranks. Collective.

    Raises:
        ValueError: the plan is heterogeneous, or the world has another size.
    """
    if plan.deployment_mode == "heterogeneous":
        raise ValueError("The plan is heterogeneous, not homogeneous or colocated.")
    provided = multimodal_provider(model_config, plan, seed, code).provide(plan)
    if provided.model is None:
        raise ValueError(f"Rank {dist.get_rank()} takes part in no module of the layout.")
    return ColocatedModel(
        plan=plan,
        model=provided.model,
        module_to_grid_map=provided.module_to_grid_map,
        topology=provided.topology,
        pg_collections=provided.pg_collections,
        bridges={
            bridge.source: ColocatedBridgeCommunicator(
                bridge, provided.pg_collections[bridge.source].tp
            )
            for bridge in plan.colocated_bridges
        },
        tokens_per_item={
            name: tokens_per_item(model_config.get_architecture(name))
            for name in model_config.encoder_module_names
        },
        frozen=model_config.frozen_modules,
        loss_func=code.loss_func,
        forward_step=code.forward_step,
    )
