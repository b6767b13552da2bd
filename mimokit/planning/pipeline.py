"""The stages of a layout, their ranks, and the order of their work, in every mode."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from mimokit.config import DeploymentMode
from mimokit.config.graph import Topology, topological_order, upstream
from mimokit.config.runtime import GPIPE, ZERO_BUBBLE, PipelineOrder
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.schedule import (
    Action,
    InGroups,
    Modality,
    Order,
    Schedule,
    SharedOrder,
    SlotPlan,
    Stage,
    StageEdge,
    StageGraph,
    Timeline,
    gpipe,
    interleaved,
    one_forward_one_backward,
    plan_schedule,
    plan_slots,
    shared_graph,
    simulate,
    stage_graph,
    zero_bubble,
)


@dataclass(frozen=True)
class PipelinePlan:
    """The order in which stages work, and their ranks.

    Attributes:
        ranks: by index of a stage: its ranks, all of which execute the same actions.
        modalities: (module, its modality), for every module of the graph.
        three_axes: modules that send integers of three axes; see `plan_slots`.
        around: modules that run forward over all micro-batches before the first action of the
            schedule, and backward after its last.
        text_heads: modules that read words for the language model; see `plan_slots`.
        in_row: modules that compute samples in a row; see `plan_slots`.
        with_grids: modules that send grids with their rows; see `plan_slots`.
        line: the pipeline of the language model alone, where its ranks compute encoders as well;
            None where they do not, or where it is not cut into stages.
    """

    schedule: Schedule
    ranks: tuple[range, ...]
    modalities: tuple[tuple[str, Modality], ...]
    three_axes: frozenset[str] = frozenset()
    around: tuple[str, ...] = ()
    text_heads: frozenset[str] = frozenset()
    in_row: frozenset[str] = frozenset()
    with_grids: frozenset[str] = frozenset()
    line: PipelinePlan | None = None

    @property
    def graph(self) -> StageGraph:
        """The stages and the edges between them."""
        return self.schedule.graph

    @cached_property
    def slots(self) -> SlotPlan:
        """The slots that tensors have in the messages between stages."""
        kinds, axes = dict(self.modalities), self.three_axes
        return plan_slots(self.graph, kinds, axes, self.text_heads, self.in_row, self.with_grids)

    def stages_of(self, rank: int) -> tuple[Stage, ...]:
        """Return the stages that a rank works on, none between the ranks of modules."""
        worker = self._worker_of(rank)
        stages = self.graph.stages
        return () if worker is None else tuple(stages[n] for n in self.graph.workers[worker])

    def actions(self, rank: int) -> tuple[Action, ...]:
        """Return the actions of a rank in an optimizer step, in order."""
        worker = self._worker_of(rank)
        return () if worker is None else self.schedule.actions(worker)

    def _worker_of(self, rank: int) -> int | None:
        for worker, stages in enumerate(self.graph.workers):
            if rank in self.ranks[stages[0]]:
                return worker
        if rank < max(ranks.stop for ranks in self.ranks):
            return None
        raise KeyError(f"rank {rank} works on no stage")

    def peer(self, rank: int, edge: StageEdge) -> int:
        """Return the rank at the other end of an edge within a module: same place, other stage."""
        here, there = self.ranks[edge.source], self.ranks[edge.destination]
        if rank in there:
            here, there = there, here
        if rank not in here:
            raise ValueError(f"rank {rank} works on neither stage of edge {edge.index}")
        return there[here.index(rank)]

    def by_rank(self) -> Iterator[tuple[int, Stage]]:
        """Yield every rank that works on a stage, with its stage, ranks ascending."""
        stages = zip(self.graph.stages, self.ranks, strict=True)
        for stage, ranks in sorted(stages, key=lambda item: item[1].start):
            for rank in ranks:
                yield rank, stage

    def timeline(self) -> Timeline:
        """Return the schedule on a clock on which a forward takes 1, a backward 2, a transfer 0."""
        return _unit_timeline(self.schedule)


@lru_cache(maxsize=8)
def _unit_timeline(schedule: Schedule) -> Timeline:
    return simulate(schedule)


ORDERS: Mapping[PipelineOrder, Order] = {GPIPE: gpipe, ZERO_BUBBLE: zero_bubble}
"""Name in a config -> order of stages, where it is not that of the number of chunks."""


def plan_program(
    mode: DeploymentMode,
    llm_module_name: str,
    topology: Topology,
    modules: Mapping[str, ModuleRanks],
    loads: Mapping[str, Collection[int]],
    num_microbatches: int,
    modalities: Mapping[str, Modality],
    frozen: Collection[str] = (),
    absent: Collection[tuple[str, int]] = (),
    three_axes: Collection[str] = (),
    in_row: Collection[str] = (),
    with_grids: Collection[str] = (),
    encoder_microbatches: int = 1,
    virtual_stages: Mapping[str, int] | None = None,
    pipeline_order: PipelineOrder | None = None,
) -> PipelinePlan:
    """Return what every rank does in a step: 1F1B, or without stages the order of shared ranks.

    Modules that share their ranks have one pipeline, that of the language module. In homogeneous
    mode its first stage also contains the encoders; in colocated mode they run forward over some
    or all micro-batches before it begins, and backward after it ends.

    Args:
        loads: module -> the ranks that read data for it.
        frozen, absent: see `plan_schedule`.
        three_axes, in_row, with_grids: see `plan_slots`.
        encoder_microbatches: for which colocated encoders run before the language module does.
        virtual_stages: module -> chunks on each of its sets of ranks, 1 where it is missing.
        pipeline_order: None: 1F1B.

    Raises:
        ScheduleError: the schedule fails its check.
    """
    language = modules[llm_module_name]
    kinds: dict[str, Modality] = {**modalities, llm_module_name: "text"}
    chunks = dict(virtual_stages or {})
    if mode == "heterogeneous":
        cut = {name: module.pipeline_parallel for name, module in modules.items()}
        graph = stage_graph(topology, cut, chunks)
    elif language.pipeline_parallel == 1:
        names = topological_order(topology)
        passes = encoder_microbatches if mode == "colocated" else 1
        return shared_program(
            topology,
            names,
            modules,
            num_microbatches,
            modalities,
            frozen,
            passes,
            [name for name in with_grids if llm_module_name not in topology[name]],
        )
    else:
        cut = {llm_module_name: language.pipeline_parallel}
        graph = stage_graph({llm_module_name: ()}, cut, chunks)
    ranks = tuple(modules[stage.module].stage(stage.place) for stage in graph.stages)
    names = tuple(name for name, _ in graph.topology)
    encoders = upstream(topology, llm_module_name)
    text_heads = frozenset(name for name in encoders if kinds.get(name) == "text")
    several = any(len(stages) > 1 for stages in graph.workers)
    order: Order = interleaved if several else one_forward_one_backward
    if pipeline_order is not None:
        order = ORDERS.get(pipeline_order, order)
    alone = order
    around: tuple[str, ...] = ()
    if mode == "heterogeneous":
        reading = {rank for module in loads.values() for rank in module}
    else:  # encoders are no stages of this pipeline
        reading, absent = set(loads[llm_module_name]), ()
    if mode == "colocated":
        around = tuple(name for name in topology if name != llm_module_name)
        if encoder_microbatches < num_microbatches:
            order = InGroups(order, encoder_microbatches)
    ends = {graph.stage(name, place).index for name in names for place in (0, -1)}
    loading = [index for index in ends if not reading.isdisjoint(ranks[index])]
    line = PipelinePlan(
        plan_schedule(
            graph,
            num_microbatches,
            order,
            frozen=frozen if mode == "heterogeneous" else (),
            absent=absent,
            loading=loading,
        ),
        ranks,
        tuple((name, kinds.get(name, "vision")) for name in names),
        frozenset(three_axes).intersection(names),
        around,
        text_heads=text_heads.intersection(names),
        in_row=frozenset(in_row),
        with_grids=frozenset(with_grids).intersection(names),
    )
    if mode == "heterogeneous":
        return line
    names = topological_order(topology)
    shared = SharedOrder(alone, encoder_microbatches, inside=mode == "homogeneous")
    staged = frozenset(name for name in names if modules[name].pipeline_parallel > 1)
    graph = shared_graph(
        topology,
        names,
        language.pipeline_parallel,
        chunks,
        1 if shared.inside else language.pipeline_parallel,
        staged - {llm_module_name},
    )
    planned = _beside(line, shared, graph, kinds, frozen, three_axes, text_heads, in_row)
    return replace(planned, with_grids=frozenset(with_grids))


def _beside(
    line: PipelinePlan,
    order: SharedOrder,
    graph: StageGraph,
    kinds: Mapping[str, Modality],
    frozen: Collection[str],
    three_axes: Collection[str],
    text_heads: frozenset[str],
    in_row: Collection[str],
) -> PipelinePlan:
    # Ranks with first stages of encoders read and cut in steps of their own.
    begin = {stage for stage in graph.beside if graph.stages[stage].place == 0}
    apart = {stage for worker in graph.workers if begin.isdisjoint(worker) for stage in worker}
    ((language, _),) = line.graph.topology
    reading = apart.intersection(graph.stage(language, place).index for place in (0, -1))
    count = line.schedule.num_microbatches
    schedule = plan_schedule(graph, count, order, frozen=frozen, loading=reading)
    return PipelinePlan(
        schedule,
        tuple(line.ranks[graph.worker_of[stage.index]] for stage in graph.stages),
        tuple((name, kinds.get(name, "vision")) for name, _ in graph.topology),
        frozenset(three_axes).intersection(name for name, _ in graph.topology),
        text_heads=text_heads,
        in_row=frozenset(in_row),
        line=line,
    )


def shared_program(
    topology: Topology,
    names: Sequence[str],
    modules: Mapping[str, ModuleRanks],
    num_microbatches: int,
    modalities: Mapping[str, Modality],
    frozen: Collection[str] = (),
    encoder_microbatches: int = 1,
    with_grids: Collection[str] = (),
) -> PipelinePlan:
    """Return what ranks do that share all modules, of which none is cut into stages.

    Args:
        names: modules with separate steps, in the order in which a rank computes them, the
            language model last. The steps of the others are part of the language model's.
        encoder_microbatches: for which the others run before the language model does.
        with_grids: see `plan_slots`.
    """
    inside = {name: tuple(fed for fed in topology[name] if fed in names) for name in names}
    graph = shared_graph(inside, names)
    order = SharedOrder(passes=encoder_microbatches)
    schedule = Schedule(graph, num_microbatches, order, frozenset(frozen) & {*names})
    kinds: dict[str, Modality] = {**modalities, names[-1]: "text"}
    return PipelinePlan(
        schedule,
        tuple(modules[stage.module].ranks for stage in graph.stages),
        tuple((name, kinds.get(name, "vision")) for name, _ in graph.topology),
        with_grids=frozenset(with_grids).intersection(names),
    )
