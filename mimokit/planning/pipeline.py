"""The stages of a layout, their ranks, and the order of their work, in every mode."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mimokit.config.graph import Topology
from mimokit.config.runtime import GPIPE, ZERO_BUBBLE, PipelineOrder
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.schedule import (
    Order,
    Schedule,
    SharedOrder,
    Stage,
    StageEdge,
    StageGraph,
    gpipe,
    shared_graph,
    zero_bubble,
)

if TYPE_CHECKING:
    from mimokit.planning.schedule import Action, Modality, SlotPlan


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
        from mimokit.planning.schedule import plan_slots  # shared ranks send no messages

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


ORDERS: Mapping[PipelineOrder, Order] = {GPIPE: gpipe, ZERO_BUBBLE: zero_bubble}
"""Name in a config -> order of stages, where it is not that of the number of chunks."""


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
