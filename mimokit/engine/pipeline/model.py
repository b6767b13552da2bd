"""A multimodal model whose modules have ranks of their own, each in pipeline stages."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
import torch.distributed as dist

from mimokit.architecture.tokens import tokens_per_item
from mimokit.config import MimoParallelismConfig
from mimokit.engine.device import rank_device
from mimokit.engine.megatron import (
    HyperCommGrid,
    MimoModelConfig,
    ModuleSpec,
    ProcessGroupCollection,
    ensure_memory_buffer,
)
from mimokit.engine.models.decoder import text_decoder_spec
from mimokit.engine.models.language import language_model_spec
from mimokit.engine.models.modality import encoder_kind, encoder_submodule_spec
from mimokit.engine.models.provider import SeededMimoModel, inject_process_groups
from mimokit.engine.models.rng import module_seed, seed_modules
from mimokit.engine.models.transformer import StagePart
from mimokit.engine.parallel.data_parallel import ModuleDataParallel, wrap_data_parallel
from mimokit.engine.parallel.grids import create_grids, participating
from mimokit.engine.pipeline.communicator import MultiModulePipelineCommunicator
from mimokit.engine.pipeline.decoder_stage import DecoderStage
from mimokit.engine.pipeline.messages import Mailbox
from mimokit.engine.pipeline.stages import EncoderStage, LanguageStage, ModuleStage
from mimokit.planning.types import LayoutPlan, PipelinePlan


@dataclass(frozen=True)
class HeterogeneousModel:
    """What one rank holds of a model in heterogeneous mode.

    Attributes:
        plan: the layout as planned.
        stage: the part of the one module that this rank works on.
        stage_index: of the stage graph.
        module_to_grid_map: the grid of every module.
        pg_collections: the process groups of the module of this rank.
        communicator: carries what crosses to and from this rank.
        tokens_per_item: encoder -> embeddings that one item becomes where the batch does not say.
        special_token_ids: encoder -> the token that holds the place of its rows.
    """

    plan: LayoutPlan
    stage: ModuleStage
    stage_index: int
    module_to_grid_map: dict[str, HyperCommGrid]
    pg_collections: dict[str, ProcessGroupCollection]
    communicator: MultiModulePipelineCommunicator
    tokens_per_item: dict[str, int]
    special_token_ids: dict[str, int]

    @property
    def pipeline(self) -> PipelinePlan:
        """The order in which stages work."""
        assert self.plan.pipeline is not None
        return self.plan.pipeline

    @property
    def language_module_name(self) -> str:
        """The module that all encoders feed."""
        return self.plan.llm_module_name

    @property
    def loss_module_name(self) -> str:
        """The module of this rank that computes a loss, if any does: its only one."""
        return self.stage.name

    @property
    def mailbox(self) -> Mailbox:
        """The messages of this rank."""
        return self.communicator.mailbox

    def modules(self) -> dict[str, ModuleDataParallel]:
        """The wrapped module on this rank by name."""
        return {self.stage.name: self.stage.wrapped}


def build_heterogeneous_model(
    model_config: MimoParallelismConfig, plan: LayoutPlan, seed: int = 1234
) -> HeterogeneousModel:
    """Build this rank's stage of a model whose modules have ranks of their own. Collective.

    Raises:
        ValueError: if the plan is for another mode or another world, two stages do not agree on
            what crosses between them, or there is more of it than a tag holds.
    """
    if plan.deployment_mode != "heterogeneous" or plan.pipeline is None:
        raise ValueError(f"The plan is {plan.deployment_mode}, not heterogeneous.")
    if dist.get_world_size() != plan.world_size:
        raise ValueError(
            f"The plan is for {plan.world_size} ranks but the world has {dist.get_world_size()}; "
            f"form a world of {plan.world_size} ranks."
        )
    ensure_memory_buffer()
    grids, groups = create_grids(plan)
    (name,) = participating(grids)
    seed_modules(seed, {name: groups[name].tp.rank()})
    communicator = MultiModulePipelineCommunicator(grids, plan.topology, plan)
    stage = _build_stage(model_config, plan, name, groups[name], seed)
    communicator.agree(stage)
    return HeterogeneousModel(
        plan=plan,
        stage=stage,
        stage_index=plan.pipeline.stage_of(dist.get_rank()).index,
        module_to_grid_map=grids,
        pg_collections=groups,
        communicator=communicator,
        tokens_per_item={
            encoder: tokens_per_item(model_config.get_architecture(encoder))
            for encoder in model_config.encoder_module_names
        },
        special_token_ids=dict(model_config.special_token_ids),
    )


def _build_stage(
    config: MimoParallelismConfig,
    plan: LayoutPlan,
    name: str,
    groups: ProcessGroupCollection,
    seed: int,
) -> ModuleStage:
    place, stages = groups.pp.rank(), groups.pp.size()
    part = StagePart(first=place == 0, last=place == stages - 1)
    torch.manual_seed(module_seed(seed, name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # both classes say that they are new
        return _stage_of(config, plan, name, groups, seed, part)


def _stage_of(
    config: MimoParallelismConfig,
    plan: LayoutPlan,
    name: str,
    groups: ProcessGroupCollection,
    seed: int,
    part: StagePart,
) -> ModuleStage:
    language = config.llm_module_name
    sizes, initial_seed = config.get_parallelism(name), module_seed(seed, name)
    network, language_network = config.get_architecture(name), config.get_architecture(language)
    if name == language:
        spec = language_model_spec(network, sizes, initial_seed, part)
        return _language_stage(config, plan, spec, groups, part, seed)
    if name in config.decoder_module_names:
        spec = text_decoder_spec(network, language_network, sizes, initial_seed, part)
        return _decoder_stage(config, name, spec, groups, part)
    spec = encoder_submodule_spec(network, language_network, sizes, initial_seed, part)
    return _encoder_stage(config, name, spec, groups, part)


def _decoder_stage(
    config: MimoParallelismConfig,
    name: str,
    spec: ModuleSpec,
    groups: ProcessGroupCollection,
    part: StagePart,
) -> DecoderStage:
    decoder = spec.module(**inject_process_groups(spec, groups).params).to(rank_device())
    decoder.requires_grad_(not config.is_frozen(name))
    wrapped = wrap_data_parallel(decoder, decoder.config, groups)
    width = config.get_architecture(config.llm_module_name).hidden_size
    return DecoderStage(name, wrapped, part.first, part.last, width)


def _encoder_stage(
    config: MimoParallelismConfig,
    name: str,
    spec: ModuleSpec,
    groups: ProcessGroupCollection,
    part: StagePart,
) -> EncoderStage:
    submodule = spec.module.from_spec(inject_process_groups(spec, groups)).to(rank_device())
    submodule.requires_grad_(not config.is_frozen(name))
    encoder = next(iter(submodule.encoders.values()))
    wrapped = wrap_data_parallel(submodule, encoder.config, groups)
    architecture = config.get_architecture(name)
    kind, tokens = encoder_kind(architecture), tokens_per_item(architecture)
    return EncoderStage(name, wrapped, part.first, part.last, kind, tokens)


def _language_stage(
    config: MimoParallelismConfig,
    plan: LayoutPlan,
    spec: ModuleSpec,
    groups: ProcessGroupCollection,
    part: StagePart,
    seed: int,
) -> LanguageStage:
    name = config.llm_module_name
    model = SeededMimoModel(
        MimoModelConfig(
            language_model_spec=inject_process_groups(spec, groups),
            modality_submodules_spec={},
            special_token_ids=dict(config.special_token_ids),
        ),
        language_module_name=name,
        seed=seed,
    ).to(rank_device())
    model.requires_grad_(not config.is_frozen(name))
    wrapped = wrap_data_parallel(model.language_model, model.language_model.config, groups)
    model.language_model = wrapped
    assert plan.pipeline is not None
    first = plan.pipeline.graph.stage(name, 0).index
    modalities = {edge.index: edge.modality for edge in plan.pipeline.graph.incoming[first]}
    networks = {encoder: config.get_architecture(encoder) for encoder in modalities.values()}
    return LanguageStage(
        name,
        wrapped,
        part.first,
        part.last,
        model,
        modalities,
        merge_sizes={n: own.merge_size for n, own in networks.items() if own.any_image_size},
        three_axes=config.get_architecture(name).mrope_section is not None,
        feeds=bool(plan.topology[name]),
    )
