"""The stages of a layout, their ranks, and the order of their work, in every mode."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from mimokit.config import DeploymentMode
from mimokit.config.graph import Topology, upstream
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.schedule import (
    Action,
    Modality,
    Schedule,
    SlotPlan,
    Stage,
    StageEdge,
    StageGraph,
    Timeline,
    plan_schedule,
    plan_slots,
    shared_graph,
    shared_ranks,
    simulate,
    stage_graph,
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
    """

    schedule: Schedule
    ranks: tuple[range, ...]
    modalities: tuple[tuple[str, Modality], ...]
    three_axes: frozenset[str] = frozenset()
    around: tuple[str, ...] = ()
    text_heads: frozenset[str] = frozenset()
    in_row: frozenset[str] = frozenset()

    @property
    def graph(self) -> StageGraph:
        """The stages and the edges between them."""
        return self.schedule.graph

    @cached_property
    def slots(self) -> SlotPlan:
        """The slots that tensors have in the messages between stages."""
        kinds = dict(self.modalities)
        return plan_slots(self.graph, kinds, self.three_axes, self.text_heads, self.in_row)

    def stages_of(self, rank: int) -> tuple[Stage, ...]:
        """Return the stages that a rank works on.

        Raises:
            KeyError: the rank works on no stage.
        """
        stages = self.graph.stages
        return tuple(stages[index] for index in self.graph.workers[self._worker_of(rank)])

    def actions(self, rank: int) -> tuple[Action, ...]:
        """Return the actions of a rank in an optimizer step, in order.

        Raises:
            KeyError: the rank works on no stage.
        """
        return self.schedule.actions(self._worker_of(rank))

    def _worker_of(self, rank: int) -> int:
        for worker, stages in enumerate(self.graph.workers):
            if rank in self.ranks[stages[0]]:
                return worker
        raise KeyError(f"rank {rank} works on no stage")

    def peer(self, rank: int, edge: StageEdge) -> int:
        """Return the rank at the other end of an edge within a module: same place, other stage.

        Raises:
            ValueError: the rank works on neither stage of the edge.
        """
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
) -> PipelinePlan:
    """Return what every rank does in a step: 1F1B, or without stages the order of shared ranks.

    Modules that share their ranks have one pipeline, that of the language module. In homogeneous
    mode its first stage also contains the encoders; in colocated mode they run forward over all
    micro-batches before it begins, and backward after it ends.

    Args:
        loads: module -> the ranks that read data for it.
        frozen, absent: see `plan_schedule`.
        three_axes, in_row: see `plan_slots`.

    Raises:
        ScheduleError: the schedule fails its check.
    """
    language = modules[llm_module_name]
    if mode == "heterogeneous":
        graph = stage_graph(topology, {n: m.pipeline_parallel for n, m in modules.items()})
    elif language.pipeline_parallel > 1:
        graph = stage_graph({llm_module_name: ()}, {llm_module_name: language.pipeline_parallel})
        # Encoders are part of the first stage, or run before and after it: none is a stage.
        frozen, absent = (), ()
        loads = {llm_module_name: loads[llm_module_name]}
    else:
        names = [*(name for name in modules if name != llm_module_name), llm_module_name]
        return shared_program(topology, names, modules, num_microbatches, modalities, frozen)
    ranks = tuple(modules[stage.module].stage(stage.place) for stage in graph.stages)
    reading = {rank for module in loads.values() for rank in module}
    loading = [index for index, span in enumerate(ranks) if not reading.isdisjoint(span)]
    schedule = plan_schedule(graph, num_microbatches, frozen=frozen, absent=absent, loading=loading)
    kinds: dict[str, Modality] = {**modalities, llm_module_name: "text"}
    names = [name for name, _ in graph.topology]
    encoders = upstream(dict(graph.topology), llm_module_name)
    return PipelinePlan(
        schedule,
        ranks,
        tuple((name, kinds.get(name, "vision")) for name in names),
        frozenset(three_axes).intersection(names),
        tuple(name for name in topology if mode == "colocated" and name != llm_module_name),
        text_heads=frozenset(name for name in encoders if kinds.get(name) == "text"),
        in_row=frozenset(in_row),
    )


def shared_program(
    topology: Topology,
    names: Sequence[str],
    modules: Mapping[str, ModuleRanks],
    num_microbatches: int,
    modalities: Mapping[str, Modality],
    frozen: Collection[str] = (),
) -> PipelinePlan:
    """Return what ranks do that share all modules, of which none is cut into stages.

    Args:
        names: modules with separate steps, in the order in which a rank computes them, the
            language model last. The steps of the others are part of the language model's.
    """
    inside = {name: tuple(fed for fed in topology[name] if fed in names) for name in names}
    graph = shared_graph(inside, names)
    schedule = Schedule(graph, num_microbatches, shared_ranks, frozenset(frozen) & {*names})
    kinds: dict[str, Modality] = {**modalities, names[-1]: "text"}
    return PipelinePlan(
        schedule,
        tuple(modules[stage.module].ranks for stage in graph.stages),
        tuple((name, kinds.get(name, "vision")) for name, _ in graph.topology),
    )
