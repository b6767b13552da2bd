"""A multimodal model whose modules have separate ranks, each in pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from mimokit.architecture.tokens import tokens_per_item
from mimokit.config import MimoParallelismConfig
from mimokit.config.user_code import NO_CODE, ForwardStep, UserCode
from mimokit.engine.megatron import HyperCommGrid, ProcessGroupCollection
from mimokit.engine.models.provider import SeededMimoModel
from mimokit.engine.models.specs import encoder_kind, multimodal_provider
from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.engine.pipeline.base_stage import ModuleStage
from mimokit.engine.pipeline.communicator import MultiModulePipelineCommunicator
from mimokit.engine.pipeline.messages import Mailbox
from mimokit.engine.pipeline.stages import DecoderStage, EncoderStage, LanguageStage
from mimokit.planning.types import LayoutPlan, PipelinePlan


@dataclass(frozen=True)
class HeterogeneousModel:
    """The part of a model in heterogeneous mode that is on one rank.

    Attributes:
        plan: the layout as planned.
        model: Megatron's `MimoModel` with the one module of this rank, cut to its stage.
        stage: the computation of this rank.
        stage_index: index in the stage graph.
        module_to_grid_map: the grid of every module.
        topology: module -> the modules it feeds.
        pg_collections: the process groups of the module of this rank.
        communicator: sends and receives the messages of this rank.
        tokens_per_item: encoder -> embeddings that one item becomes where the batch does not say.
        forward_step: of the user, if there is one.
    """

    plan: LayoutPlan
    model: SeededMimoModel
    stage: ModuleStage
    stage_index: int
    module_to_grid_map: dict[str, HyperCommGrid]
    topology: dict[str, list[str]]
    pg_collections: dict[str, ProcessGroupCollection]
    communicator: MultiModulePipelineCommunicator
    tokens_per_item: dict[str, int]
    forward_step: ForwardStep | None = None

    @property
    def pipeline(self) -> PipelinePlan:
        """The planned order of the stages' actions."""
        assert self.plan.pipeline is not None
        return self.plan.pipeline

    @property
    def language_module_name(self) -> str:
        """The module that all encoders feed."""
        return self.plan.llm_module_name

    @property
    def loss_module_name(self) -> str:
        """The only module of this rank, whether or not it computes a loss."""
        return self.stage.name

    @property
    def special_token_ids(self) -> dict[str, int]:
        """encoder -> its placeholder token id."""
        return dict(self.model.special_token_ids)

    @property
    def mailbox(self) -> Mailbox:
        """The messages of this rank."""
        return self.communicator.mailbox

    def modules(self) -> dict[str, ModuleDataParallel]:
        """The wrapped module on this rank by name."""
        return {self.stage.name: self.stage.wrapped}


def build_heterogeneous_model(
    model_config: MimoParallelismConfig,
    plan: LayoutPlan,
    seed: int = 1234,
    code: UserCode = NO_CODE,
) -> HeterogeneousModel:
    """Build the stage of this rank of a model whose modules have separate ranks. Collective.

    Raises:
        ValueError: if the plan is for another mode or another world size, two stages disagree on
            their messages, or there are more messages than a tag can distinguish.
    """
    if plan.deployment_mode != "heterogeneous" or plan.pipeline is None:
        raise ValueError(f"The plan is {plan.deployment_mode}, not heterogeneous.")
    provided = multimodal_provider(model_config, plan, seed, code).provide(plan)
    if provided.model is None:
        raise ValueError(f"Rank {dist.get_rank()} takes part in no module of the layout.")
    grids, groups = provided.module_to_grid_map, provided.pg_collections
    communicator = MultiModulePipelineCommunicator(grids, plan.topology, plan)
    ((name, own),) = groups.items()
    stage = _stage(model_config, plan, name, provided.model, own, code)
    communicator.agree(stage)
    return HeterogeneousModel(
        plan=plan,
        model=provided.model,
        stage=stage,
        stage_index=communicator.stage_index,
        module_to_grid_map=grids,
        topology=provided.topology,
        pg_collections=groups,
        communicator=communicator,
        tokens_per_item={
            encoder: tokens_per_item(model_config.get_architecture(encoder))
            for encoder in model_config.encoder_module_names
        },
        forward_step=code.forward_step,
    )


def _stage(
    config: MimoParallelismConfig,
    plan: LayoutPlan,
    name: str,
    model: SeededMimoModel,
    groups: ProcessGroupCollection,
    code: UserCode,
) -> ModuleStage:
    """Return the stage of this rank around its wrapped module."""
    first, last = groups.pp.rank() == 0, groups.pp.rank() == groups.pp.size() - 1
    ((_, wrapped),) = model.parts()
    network = config.get_architecture(name)
    if name in config.decoder_module_names:
        width = config.get_architecture(config.llm_module_name).hidden_size
        return DecoderStage(name, wrapped, first, last, width)
    if name in config.encoder_module_names:
        kind, tokens = encoder_kind(network), tokens_per_item(network)
        return EncoderStage(name, wrapped, first, last, kind, tokens)
    assert plan.pipeline is not None
    entry = plan.pipeline.graph.stage(name, 0).index
    modalities = {edge.index: edge.modality for edge in plan.pipeline.graph.incoming[entry]}
    encoders = {encoder: config.get_architecture(encoder) for encoder in modalities.values()}
    return LanguageStage(
        name,
        wrapped,
        first,
        last,
        model,
        modalities,
        merge_sizes={n: own.merge_size for n, own in encoders.items() if own.any_image_size},
        three_axes=network.mrope_section is not None,
        feeds=bool(plan.topology[name]),
        loss_func=code.loss_func,
    )
