"""Parts of the operations each rank performs in one step, with CPU seconds.

A pass is one operation that includes its tensor-parallel collectives, because all ranks of a
tensor-parallel group perform the same operations at the same time. `rank_programs` orders them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mimokit.architecture.from_config import modules_of_config
from mimokit.architecture.layer_work.collectives import Way
from mimokit.architecture.parameters_on_rank import Module
from mimokit.architecture.tensors import stage_tensors
from mimokit.architecture.tokens import geometry_of, tokens_per_item
from mimokit.axes import Axis
from mimokit.config import ExperimentConfig
from mimokit.config.errors import Problem, refuse_if_any
from mimokit.planning.schedule import Stage
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.local_cpu.cost_model import NUMBER_BYTES, CoreCosts
from mimokit.prediction.local_cpu.module_costs import ModuleCosts
from mimokit.prediction.local_cpu.simulator import Collective, Compute, Operation, Span, all_reduce
from mimokit.step_kinds import StepKind

MOMENTS = 2
"""Adam keeps two numbers per parameter."""


@dataclass(frozen=True)
class Stored:
    """The part of a module on one rank."""

    tensors: int
    numbers: int

    def __add__(self, other: Stored) -> Stored:
        return Stored(self.tensors + other.tensors, self.numbers + other.numbers)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights; gradients take as many."""
        return NUMBER_BYTES * self.numbers

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of Adam's moments."""
        return MOMENTS * self.weight_bytes


def stored_on_rank(config: ExperimentConfig, plan: LayoutPlan, rank: int) -> dict[str, Stored]:
    """Return module -> what a rank stores of it; modules without the rank are left out."""
    modules = {}
    for module in modules_of_config(config.model):
        ranks = plan.modules[module.name]
        if rank in ranks.ranks:
            sizes = plan.executions[module.name].sizes
            stage = ranks.coordinates(rank)[Axis.PIPELINE]
            place = ranks.shard_place(rank)
            shards = [tensor.cut.at(place) for tensor in stage_tensors(module, sizes, stage)]
            shapes = [shard.shape for shard in shards if shard.is_held]
            modules[module.name] = Stored(len(shapes), sum(map(math.prod, shapes)))
    return modules


SCALAR_BYTES = 8


@dataclass(frozen=True)
class StepCosts:
    """Input of programs: layout, plan and costs."""

    config: ExperimentConfig
    plan: LayoutPlan
    costs: CoreCosts
    items: Mapping[str, float]
    modules: Mapping[str, Module]

    def module(self, name: str) -> ModuleCosts:
        """Return the costs of a module."""
        ranks, length = self.plan.modules[name], self.config.data.seq_length
        rows = length
        if name in self.items:
            image = geometry_of(self.config.model.get_architecture(name))
            rows, length = image.tokens, image.positions
        items = self.items.get(name, 1.0)
        stages = ranks.pipeline_parallel * self.plan.executions[name].virtual_stages
        return ModuleCosts(self.modules[name], self.costs, ranks, items, length, rows, stages)

    def samples(self, name: str) -> int:
        """Return the samples of a micro-batch on one replica of a module."""
        return self.plan.batch.modules[name].micro_batch_size

    def load(self, samples: int) -> Compute:
        """Return the operation that reads a batch."""
        return Compute(
            Span(None, StepKind.LOAD), self.costs.piece("load", {"batch": 1, "sample": samples})
        )

    def one_pass(self, stage: Stage, way: Way, rank: int, share: float = 1.0) -> Operation:
        """Return one forward or backward pass of a stage on a rank, or a share of it."""
        name = stage.module
        seconds = share * self.module(name).seconds(way, self.samples(name), stage.place)
        members = self.plan.modules[name].group_of(rank, "tp")
        span = Span(name, way)
        return Collective(span, seconds, members) if len(members) > 1 else Compute(span, seconds)

    def shared(
        self, kind: Literal["all-gather", "broadcast"], span: Span, members: tuple[int, ...],
        size: float,
    ) -> list[Operation]:  # fmt: skip
        """Return a collective with a result of `size` bytes."""
        if len(members) == 1:
            return []
        return [Collective(span, self.costs.collective(kind, len(members), size), members)]

    def all_reduce(
        self, span: Span, members: tuple[int, ...], numbers: int, rank: int
    ) -> list[Operation]:
        """Return the operations of a rank in an all-reduce of `numbers` numbers."""
        if len(members) == 1:
            return []
        seconds = self.costs.collective("all-reduce", len(members), NUMBER_BYTES * numbers)
        return all_reduce(span, members, seconds, numbers, rank)

    def update(self, rank: int) -> list[Operation]:
        """Return what follows the last backward pass: token count, reduction, norm, optimizer."""
        world, sync = tuple(range(self.plan.world_size)), Span(None, StepKind.GRAD_SYNC)
        stored = stored_on_rank(self.config, self.plan, rank)
        reduce = self.all_reduce(sync, world, 1, rank)
        work = self.costs.piece("step", {"step": 1})
        for name, part in stored.items():
            members = self.plan.modules[name].group_of(rank, "cp", "dp")
            reduce += self.all_reduce(sync, members, part.numbers, rank)
        whole = sum(stored.values(), Stored(0, 0))
        terms = {"step": 1, "module": len(stored), "tensor": whole.tensors, "number": whole.numbers}
        work += self.costs.piece("update", terms)
        norm = self.all_reduce(sync, world, 1, rank)
        report = self.all_reduce(
            Span(None, StepKind.REPORT), world, 3 + len(self.plan.modules), rank
        )
        return [*reduce, *norm, Compute(Span(None, StepKind.OPTIMIZER), work), *report]


def step_costs(
    config: ExperimentConfig,
    plan: LayoutPlan,
    costs: CoreCosts,
    items_per_sample: Mapping[str, float] | None = None,
) -> StepCosts:
    """Return the input of programs.

    Raises:
        ConfigError: the model has parts that calibration does not measure.
    """
    _check(config)
    items = {
        name: config.tokens_of(name) / tokens_per_item(config.model.get_architecture(name))
        for name in config.model.encoder_module_names
    }
    items |= items_per_sample or {}
    modules = {module.name: module for module in modules_of_config(config.model)}
    return StepCosts(config, plan, costs, items, modules)


def _check(config: ExperimentConfig) -> None:
    problems = []
    decoders = config.model.decoder_module_names
    for name in (*plan_names(config), *decoders):
        architecture = config.model.get_architecture(name)
        sizes = config.model.get_parallelism(name)
        known = {
            "an audio encoder": architecture.modality == "audio",
            "a text head": architecture.modality == "text"
            and name not in (config.model.llm_module_name, *decoders),
            "frozen": architecture.frozen,
            "a mixture of experts": architecture.num_moe_experts is not None,
            "of multi-latent attention": bool(architecture.multi_latent_attention),
            "sharded over context-parallel ranks": sizes.context_parallel > 1,
            "sharded over expert-parallel ranks": sizes.expert_parallel > 1,
        }
        problems += [
            Problem(
                name,
                "architecture",
                what,
                f"Module '{name}' is {what}, whose CPU time is not calibrated; "
                "predict_shared supports trained vision encoders, adapters, language models and "
                "text decoders.",
            )
            for what, is_so in known.items()
            if is_so
        ]
    refuse_if_any(problems)


def plan_names(config: ExperimentConfig) -> tuple[str, ...]:
    """Return all modules, the language model last."""
    return (*config.model.encoder_module_names, config.model.llm_module_name)
