"""Plans what every rank does in a step, in every mode."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from mimokit.axes import Axis
from mimokit.config import ExperimentConfig, MimoParallelismConfig
from mimokit.config.graph import Topology, topological_order
from mimokit.planning.execution import ModuleExecution
from mimokit.planning.pipeline import ORDERS, PipelinePlan, shared_program
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.schedule import (
    InGroups,
    Modality,
    Order,
    Schedule,
    SharedOrder,
    StageGraph,
    interleaved,
    one_forward_one_backward,
    shared_graph,
    stage_graph,
)
from mimokit.planning.types import BatchPlan


@dataclass(frozen=True)
class _Senders:
    """What modules send, by which a message between stages has its slots; see `plan_slots`."""

    kinds: Mapping[str, Modality]
    three_axes: frozenset[str]
    text_heads: frozenset[str]
    in_row: frozenset[str]
    with_grids: frozenset[str]

    @classmethod
    def of(cls, model: MimoParallelismConfig, in_row: Collection[str]) -> Self:
        networks, encoders = model.module_architectures, model.encoder_module_names
        kinds: dict[str, Modality] = {
            name: "vision"
            if network.modality == "rows" or name in model.reconstructing_names
            else network.modality
            for name, network in networks.items()
        }
        kinds[model.llm_module_name] = "text"
        return cls(
            kinds,
            frozenset(
                name
                for name, network in networks.items()
                if network.any_image_size
                or network.mrope_section is not None
                or network.modality == "rows"
                or name in model.reconstructing_names
            ),
            frozenset(name for name in encoders if kinds.get(name) == "text"),
            frozenset(in_row),
            frozenset(name for name in encoders if model.sends_grids(name)),
        )

    def planned(
        self,
        schedule: Schedule,
        ranks: tuple[range, ...],
        around: tuple[str, ...] = (),
        line: PipelinePlan | None = None,
    ) -> PipelinePlan:
        names = [name for name, _ in schedule.graph.topology]
        return PipelinePlan(
            schedule,
            ranks,
            tuple((name, self.kinds.get(name, "vision")) for name in names),
            self.three_axes.intersection(names),
            around,
            self.text_heads.intersection(names),
            self.in_row,
            self.with_grids.intersection(names),
            line,
        )


def plan_program(
    config: ExperimentConfig,
    modules: Mapping[str, ModuleRanks],
    executions: Mapping[str, ModuleExecution],
    batch: BatchPlan,
) -> PipelinePlan:
    """Return what every rank does in a step: 1F1B, or without stages the order of shared ranks.

    Modules that share their ranks have one pipeline, that of the language module. In homogeneous
    mode its first stage also contains the encoders; in colocated mode they run forward over some
    or all micro-batches before it begins, and backward after it ends.

    Raises:
        ScheduleError: the schedule fails its check.
    """
    model, count, language = config.model, batch.num_microbatches, config.model.llm_module_name
    in_row = {name for name, execution in executions.items() if execution.samples_in_row}
    if model.get_architecture(language).counts_tokens:
        in_row.add(language)
    senders = _Senders.of(model, in_row)
    chunks = {name: execution.size(Axis.VIRTUAL_PIPELINE) for name, execution in executions.items()}
    topology = model.module_topology
    if model.deployment_mode == "heterogeneous":
        cut = {name: module.pipeline_parallel for name, module in modules.items()}
        graph, order = _stages(config, topology, cut, chunks)
        reading = {rank for module in batch.modules.values() for rank in module.loads}
        absent = _absent(config, batch.samples_per_microbatch)
        frozen = model.frozen_modules
        return _line(senders, modules, graph, order, count, reading, frozen=frozen, absent=absent)
    if modules[language].pipeline_parallel > 1:
        return _beside(config, senders, modules, chunks, count, batch.modules[language].loads)
    passes = config.runtime.encoder_microbatches_of(count)
    return shared_program(
        topology,
        topological_order(topology),
        modules,
        count,
        senders.kinds,
        model.frozen_modules,
        passes if model.deployment_mode == "colocated" else 1,
        [name for name in senders.with_grids if language not in topology[name]],
    )


def _absent(config: ExperimentConfig, samples_per_microbatch: int) -> frozenset[tuple[str, int]]:
    """Return (encoder, micro-batch) without items: of an adapter where all before it have none."""
    absent, model = config.data.absent_microbatches(samples_per_microbatch), config.model
    return frozenset(
        (name, microbatch)
        for name in model.encoder_module_names
        for microbatch in {microbatch for _, microbatch in absent}
        if absent.issuperset((source, microbatch) for source in model.inputs_of(name))
    )


def _stages(
    config: ExperimentConfig, topology: Topology, cut: Mapping[str, int], chunks: Mapping[str, int]
) -> tuple[StageGraph, Order]:
    graph = stage_graph(topology, cut, chunks)
    several = any(len(stages) > 1 for stages in graph.workers)
    order: Order = interleaved if several else one_forward_one_backward
    named = config.runtime.pipeline_order
    return graph, order if named is None else ORDERS.get(named, order)


def _line(
    senders: _Senders,
    modules: Mapping[str, ModuleRanks],
    graph: StageGraph,
    order: Order,
    num_microbatches: int,
    reading: Collection[int],
    around: tuple[str, ...] = (),
    frozen: Collection[str] = (),
    absent: Collection[tuple[str, int]] = (),
) -> PipelinePlan:
    ranks = tuple(modules[stage.module].stage(stage.place) for stage in graph.stages)
    ends = {graph.stage(name, place).index for name, _ in graph.topology for place in (0, -1)}
    loading = [index for index in ends if not set(reading).isdisjoint(ranks[index])]
    from mimokit.planning.schedule import plan_schedule  # shared ranks need none of its checks

    schedule = plan_schedule(
        graph, num_microbatches, order, frozen=frozen, absent=absent, loading=loading
    )
    return senders.planned(schedule, ranks, around)


def _beside(
    config: ExperimentConfig,
    senders: _Senders,
    modules: Mapping[str, ModuleRanks],
    chunks: Mapping[str, int],
    num_microbatches: int,
    reading: Collection[int],
) -> PipelinePlan:
    from mimokit.planning.schedule import plan_schedule

    model, language = config.model, config.model.llm_module_name
    topology, stages = model.module_topology, modules[language].pipeline_parallel
    passes = config.runtime.encoder_microbatches_of(num_microbatches)
    inside = model.deployment_mode == "homogeneous"
    graph, alone = _stages(config, {language: ()}, {language: stages}, chunks)
    order: Order = alone
    around: tuple[str, ...] = ()
    if not inside:
        around = tuple(name for name in topology if name != language)
        order = InGroups(alone, passes) if passes < num_microbatches else alone
    line = _line(senders, modules, graph, order, num_microbatches, reading, around)
    staged = {name for name in topology if modules[name].pipeline_parallel > 1} - {language}
    shares = 1 if inside else stages
    names = topological_order(topology)
    graph = shared_graph(topology, names, stages, chunks, shares, staged)
    # Ranks with first stages of encoders read and cut in steps of their own.
    begin = {stage for stage in graph.beside if graph.stages[stage].place == 0}
    apart = {stage for worker in graph.workers if begin.isdisjoint(worker) for stage in worker}
    loading = apart.intersection(graph.stage(language, place).index for place in (0, -1))
    shared = SharedOrder(alone, passes, inside)
    frozen = model.frozen_modules
    schedule = plan_schedule(graph, num_microbatches, shared, frozen=frozen, loading=loading)
    ranks = tuple(line.ranks[graph.worker_of[stage.index]] for stage in graph.stages)
    return senders.planned(schedule, ranks, line=line)
