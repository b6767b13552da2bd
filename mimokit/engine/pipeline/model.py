"""The part of a multimodal model that is on one rank, in every mode."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch.distributed as dist

from mimokit.architecture.tokens import tokens_per_item
from mimokit.config import ModelSection
from mimokit.config.user_code import NO_CODE, ForwardStep, UserCode
from mimokit.engine.bridges.checks import EveryCall, ReplicaCheck, check_rarely
from mimokit.engine.bridges.colocated import ColocatedBridgeCommunicator
from mimokit.engine.bridges.messages import Mailbox
from mimokit.engine.data.iterators import PlacesOf
from mimokit.engine.data.reconstruction import Reconstruction
from mimokit.engine.megatron import HyperCommGrid, ProcessGroupCollection
from mimokit.engine.models.adapter import ROWS
from mimokit.engine.models.chunks import chunks_of
from mimokit.engine.models.encoder import Encoder
from mimokit.engine.models.own_modules import no_items_of
from mimokit.engine.models.projector import receiver_columns
from mimokit.engine.models.provider import MimoModelProviderResult, NoModules, SeededMimoModel
from mimokit.engine.models.specs import encoder_kind, multimodal_provider
from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.engine.pipeline.base_stage import ModuleStage, StagePlace
from mimokit.engine.pipeline.communicator import MultiModulePipelineCommunicator
from mimokit.engine.pipeline.encoder_stages import AdapterStage, EncoderStage, ImageDecoderStage
from mimokit.engine.pipeline.language_stages import (
    Branch,
    DecoderStage,
    LanguageStage,
    LanguageTask,
)
from mimokit.engine.pipeline.modality_stage import ModalityStage, OwnModality, token_grids_of
from mimokit.planning.schedule import Action, Stage, StageGraph
from mimokit.planning.types import BatchPlan, LayoutPlan, PipelinePlan


@dataclass(frozen=True)
class SamplesOfRank:
    """Numbers in the global batch of the samples that a module computes on a rank.

    Attributes:
        places: at which they were drawn; None: in the order in which replicas take them.
    """

    batch: BatchPlan
    module: str
    rank: int
    places: PlacesOf | None = None

    def __call__(self, step: int, microbatch: int) -> Sequence[int]:
        """Return the numbers of those of a micro-batch."""
        places = None if self.places is None else self.places(step, microbatch)
        numbers: Sequence[int] = self.batch.numbers(self.module, self.rank, microbatch, places)
        return numbers


@dataclass(frozen=True)
class RankModel:
    """The part of a model that is on one rank.

    Attributes:
        model: the modules of this rank, cut to their stages.
        stages: index in the stage graph -> the computation on this rank.
        topology: module -> the modules it feeds.
        bridges: encoder -> its bridge to what it feeds on shared ranks without messages.
        communicator: sends and receives the messages of this rank; None where no module is cut
            into stages and all share their ranks.
        special_token_ids: encoder that reads items -> the placeholders of its rows, path by path.
        tokens_per_item: likewise, embeddings that one item becomes where the batch does not say.
        step_numbers: counts the optimizer steps that this rank begins.
    """

    plan: LayoutPlan
    model: SeededMimoModel
    stages: Mapping[int, ModuleStage]
    module_to_grid_map: dict[str, HyperCommGrid]
    topology: dict[str, list[str]]
    pg_collections: dict[str, ProcessGroupCollection]
    bridges: dict[str, ColocatedBridgeCommunicator]
    communicator: MultiModulePipelineCommunicator | None
    special_token_ids: Mapping[str, Sequence[int]]
    tokens_per_item: dict[str, int]
    forward_step: ForwardStep | None = None
    step_numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def program(self) -> PipelinePlan:
        """The planned actions of all ranks."""
        return self.plan.program

    @cached_property
    def actions(self) -> tuple[Action, ...]:
        """The actions of this rank in an optimizer step, in order."""
        return self.program.actions(dist.get_rank())

    @property
    def language_module_name(self) -> str:
        """The module that all encoders feed."""
        return self.plan.llm_module_name

    @property
    def last_stage(self) -> ModuleStage:
        """The stage of this rank that no other of its stages feeds; only it may compute a loss.

        A rank that takes part in no module has none.
        """
        return self.stages[max(self.stages)]

    @property
    def mailbox(self) -> Mailbox:
        """The messages of this rank."""
        assert self.communicator is not None, "there are no messages"
        return self.communicator.mailbox

    @property
    def replica_checks(self) -> list[ReplicaCheck]:
        """What compares the outputs of this rank's modules with those of ranks that are alike."""
        of_messages = [] if self.communicator is None else self.communicator.replica_checks
        return [*self.bridges.values(), *of_messages]

    def check_replicas_rarely(self) -> EveryCall:
        """Let the checks of all ranks take place in one step of N, which the loop begins."""
        sources = [self.plan.executions[bridge.source].sizes for bridge in self.plan.bridges]
        alike = any(bool(source.tensor * source.context > 1) for source in sources)
        return check_rarely(self.replica_checks, anywhere=alike)

    def number_samples(self, places: PlacesOf) -> None:
        """Number samples by where they were drawn: replicas take them in another order."""
        for stage in self.stages.values():
            stage.samples = SamplesOfRank(self.plan.batch, stage.name, dist.get_rank(), places)

    def modules(self) -> dict[str, ModuleDataParallel]:
        """The wrapped modules on this rank by name, in the order of the plan."""
        wrapped = dict(self.model.parts())
        return {name: wrapped[name] for name in self.plan.modules if name in wrapped}


def build_rank_model(
    model_config: ModelSection,
    plan: LayoutPlan,
    seed: int = 1234,
    code: UserCode = NO_CODE,
) -> RankModel:
    """Build the modules of this rank, cut to its stages, and what connects them. Collective.

    Raises:
        ValueError: if the plan is for another world size, two stages disagree on their messages, or
            there are more messages than a tag can distinguish.
    """
    provided = multimodal_provider(model_config, plan, seed, code).provide(plan)
    return rank_model_of(provided, code)


def rank_model_of(provided: MimoModelProviderResult, code: UserCode = NO_CODE) -> RankModel:
    """Connect the wrapped modules that a provider has built on this rank. Collective.

    Raises:
        ValueError: two stages disagree on their messages, or there are more messages than a tag can
            distinguish.
    """
    model_config, plan = provided.config, provided.plan
    model = provided.model or NoModules(plan.llm_module_name)
    grids, groups = provided.module_to_grid_map, provided.pg_collections
    communicator = None
    if plan.pipeline is not None:
        communicator = MultiModulePipelineCommunicator(grids, plan.topology, plan)
    stages = {
        stage.index: _stage(model_config, plan, stage, model, code)
        for stage in plan.program.stages_of(dist.get_rank())
    }
    for index, built in stages.items():
        built.samples = SamplesOfRank(plan.batch, built.name, dist.get_rank())
        built.columns = _columns(model_config, plan.program.graph, index)
    if communicator is not None:
        communicator.agree(stages)
    return RankModel(
        plan=plan,
        model=model,
        stages=stages,
        module_to_grid_map=grids,
        topology=provided.topology,
        pg_collections=groups,
        bridges={
            bridge.source: ColocatedBridgeCommunicator(
                bridge,
                groups[bridge.source].tp_cp,
                kinds=2 if bridge.source in plan.program.with_grids else 1,
            )
            for bridge in plan.colocated_bridges
            if bridge.source in groups
        },
        communicator=communicator,
        special_token_ids=model_config.input_token_ids,
        tokens_per_item={
            encoder: tokens_per_item(model_config.get_architecture(encoder))
            for encoder in model_config.input_module_names
        },
        forward_step=code.forward_step,
    )


def _columns(config: ModelSection, graph: StageGraph, stage: int) -> dict[int, slice]:
    own = receiver_columns(config, graph.stages[stage].module)
    receivers = {e.index: graph.stages[e.destination].module for e in graph.outgoing[stage]}
    return {edge: own[receiver] for edge, receiver in receivers.items() if receiver in own}


def _stage(
    config: ModelSection,
    plan: LayoutPlan,
    stage: Stage,
    model: SeededMimoModel,
    code: UserCode,
) -> ModuleStage:
    name, graph = stage.module, plan.program.graph
    chunk = stage.place // plan.modules[name].pipeline_parallel
    last = stage.place == graph.stage(name, -1).place
    place = StagePlace(name, dict(model.parts())[name], stage.place == 0, last, chunk)
    if name in config.reconstructing_names:
        made = Reconstruction.of(config, name, config.get_architecture(name))
        edges = [edge.index for edge in graph.incoming[graph.stage(name, 0).index]]
        return ImageDecoderStage(place, ROWS, made, edges)
    if name in config.decoder_module_names:
        width = config.get_architecture(config.llm_module_name).hidden_size
        return DecoderStage(place, width, plan.executions[name].samples_in_row)
    if name in config.encoder_module_names:
        return _encoder_stage(config, plan, place)
    return LanguageStage(place, model, _language_task(config, plan), code.loss_func)


def _encoder_stage(config: ModelSection, plan: LayoutPlan, place: StagePlace) -> ModuleStage:
    name, graph, network = place.name, plan.program.graph, config.get_architecture(place.name)
    kind, tokens = encoder_kind(network), tokens_per_item(network)
    with_grids = name in plan.program.with_grids
    (first_chunk, *_) = chunks_of(place.wrapped.module)
    if not all(isinstance(encoder, Encoder) for encoder in first_chunk.encoders.values()):
        (receiver,) = config.receivers_of(name)
        own = OwnModality(
            width=config.get_architecture(receiver).hidden_size,
            tokens_per_item=tokens,
            no_items=partial(no_items_of, network, kind.sizes),
            merge_size=network.merge_size,
            grids=partial(token_grids_of, network) if with_grids else None,
        )
        return ModalityStage(place, own)
    if network.modality != "rows":
        return EncoderStage(place, kind, tokens, with_grids)
    incoming = [
        edge.index
        for feeder in config.feeders_of(name)
        for edge in graph.edges
        if edge.modality == feeder and graph.stages[edge.destination].module == name
    ]
    return AdapterStage(place, kind, tokens, incoming)


def _language_task(config: ModelSection, plan: LayoutPlan) -> LanguageTask:
    name, program = plan.llm_module_name, plan.program
    in_row = plan.executions[name].samples_in_row
    branches = {
        edge.index: Branch(
            edge.modality,
            edge.modality in program.with_grids and config.has_image_grids(edge.modality),
            len(config.get_architecture(edge.modality).inner_layers),
        )
        for edge in program.graph.incoming[program.graph.stage(name, 0).index]
    }
    return LanguageTask(
        branches,
        three_axes=name in program.three_axes,
        in_row=in_row,
        with_lengths=in_row or config.get_architecture(name).counts_tokens,
        feeds=bool(plan.topology[name]),
        feeds_rows=any(plan.executions[fed].samples_in_row for fed in plan.topology[name]),
    )
