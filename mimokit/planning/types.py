"""The plan of a layout as frozen data, which engines execute and widgets draw.

Every sample range is half open, `[start, stop)`. Every rank is numbered in the whole world.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

from mimokit.axes import Choice
from mimokit.planning.bridges.routes import Direction, Form, Route, Transfer
from mimokit.planning.execution import ModuleExecution
from mimokit.planning.pipeline import PipelinePlan
from mimokit.planning.ranks import ModuleRanks, SampleRange
from mimokit.planning.replicas import ReplicaPlan
from mimokit.planning.schedule import StageEdge
from mimokit.units import counted

__all__ = [
    "BatchPlan",
    "Bridge",
    "ColocatedBridge",
    "Direction",
    "DisjointBridge",
    "LayoutPlan",
    "ModuleBatch",
    "PipelinePlan",
    "Route",
    "SampleRange",
    "Transfer",
]


@dataclass(frozen=True)
class ModuleBatch:
    """The samples of one micro-batch on the ranks of one module.

    Attributes:
        micro_batch_size: samples per data-parallel replica and micro-batch.
        samples: rank -> the samples of the micro-batch that the rank computes.
        loads: ranks that read data for this module.
        loaded: loading rank -> the samples of the micro-batch that it reads. In colocated mode
            without a pipeline this is the range of the module with the fewest replicas; in all
            other layouts it equals `samples`.
    """

    micro_batch_size: int
    samples: Mapping[int, SampleRange]
    loads: tuple[int, ...]
    loaded: Mapping[int, SampleRange]


@dataclass(frozen=True)
class BatchPlan:
    """The batch of every module.

    Attributes:
        samples_per_microbatch: samples of one micro-batch over all replicas,
            `base_batch_size * data_parallel of the language module`.
        replica: of the layout, under a strategy between replicas: it reads global batch
            `step * replicas + replica` of the data.
    """

    samples_per_microbatch: int
    num_microbatches: int
    modules: Mapping[str, ModuleBatch]
    replica: int = 0
    replicas: int = 1

    def read_by(self, rank: int) -> SampleRange | None:
        """Return the samples of a micro-batch that a rank reads; None if it reads no data.

        It reads once for all its modules: from the first sample of any of them to the last one.
        """
        ranges = [module.loaded[rank] for module in self.modules.values() if rank in module.loads]
        if not ranges:
            return None
        starts, stops = zip(*ranges, strict=True)
        return min(starts), max(stops)

    @property
    def global_batch_size(self) -> int:
        """Samples of a replica in a step: `samples_per_microbatch * num_microbatches`."""
        return self.samples_per_microbatch * self.num_microbatches

    def numbers(
        self, module: str, rank: int, microbatch: int, places: Sequence[int] | None = None
    ) -> Sequence[int]:
        """Return the samples that a rank computes of a micro-batch, as numbers of a step.

        They count through the micro-batches of all replicas; no layout changes them.
        """
        before = self.replica * self.global_batch_size + microbatch * self.samples_per_microbatch
        start, stop = self.modules[module].samples[rank]
        if places is None:
            return range(before + start, before + stop)
        return [before + place for place in places[start:stop]]


@dataclass(frozen=True)
class ColocatedBridge:
    """How the output of `source` reaches `destination` on the same ranks, per micro-batch.

    fan_in: the source has more replicas; its pieces are gathered (forward), the gradient is sliced
    (backward). fan_out: the source has fewer replicas; its output is sliced (forward), the gradient
    is gathered (backward). equal: nothing moves.

    Attributes:
        ratio: larger DP / smaller DP.
        gather_groups: the ranks that gather with each other, in the order in which their pieces
            are concatenated. Every rank of the span is in exactly one group.
        pieces: rank -> its samples of the micro-batch, of the module with more replicas.
        bytes_forward: received over all ranks; `bytes_backward` those of the gradient.
    """

    kind: ClassVar[Literal["colocated"]] = "colocated"

    source: str
    destination: str
    direction: Direction
    ratio: int
    gather_groups: tuple[tuple[int, ...], ...]
    pieces: Mapping[int, SampleRange]
    bytes_forward: int
    bytes_backward: int

    @cached_property
    def wholes(self) -> Mapping[int, SampleRange]:
        """Rank -> the samples of its gather group: those of the module with fewer replicas."""
        return {
            rank: (self.pieces[group[0]][0], self.pieces[group[-1]][1])
            for group in self.gather_groups
            for rank in group
        }

    @property
    def forward(self) -> Route:
        """How the output crosses: each rank keeps its samples; in a fan-in groups then gather."""
        return self._route(self.direction == "fan_in", self.bytes_forward)

    @property
    def backward(self) -> Route:
        """How its gradient crosses: each rank keeps its own; in a fan-out groups then gather."""
        return self._route(self.direction == "fan_out", self.bytes_backward)

    def _route(self, gathers: bool, moved: int) -> Route:
        form: Form = "shards" if gathers else "copies"
        groups = self.gather_groups if gathers else ()
        return Route(form, groups=groups, bytes_within=moved, kept=self.pieces)


@dataclass(frozen=True)
class DisjointBridge:
    """How the output of `source` reaches `destination` on other ranks, per micro-batch.

    In colocated mode it also connects modules on the same ranks if the destination is a pipeline:
    then the ranks of its first stage receive, and keep the samples that they have computed.

    The ranks of the source's last pipeline stage send forward to those of the destination's first
    stage, and receive the gradient. Every rank of a tensor (and context) parallel group has the
    whole output of its replica.

    Attributes:
        direction: fan_in if the source has more replicas, fan_out if it has fewer.
        leader_edges: (source rank, destination rank) of the leader form, which megatron-core's
            `BridgeCommunicator` uses: the last rank of every source replica's last stage, the
            first rank of every destination replica's first stage.
        backward: how its gradient crosses, from the destination to the source.
    """

    kind: ClassVar[Literal["disjoint"]] = "disjoint"

    source: str
    destination: str
    direction: Direction
    ratio: int
    leader_edges: tuple[tuple[int, int], ...]
    forward: Route
    backward: Route


Bridge = ColocatedBridge | DisjointBridge


@dataclass(frozen=True, repr=False)
class LayoutPlan:
    """All decisions about a layout that are made before it runs, and nothing else.

    Attributes:
        world_size: ranks of the world, of all replicas together.
        topology: module -> the modules that it feeds.
        modules: module -> its ranks, in the order of the config; those of the first replica.
        executions: module -> how these ranks compute it.
        batch: the samples that each rank reads and computes.
        bridges: how outputs cross between modules, one per edge of the topology: colocated if
            modules share their ranks, disjoint if they have separate ranks or the language model
            is a pipeline on shared ranks.
        program: the stages of every rank, and what it does in a step.
        replicas: the replicas of the layout and what they exchange; None if the config has no
            strategy. Everything else of the plan is that of the first replica.
    """

    world_size: int
    deployment_mode: str
    llm_module_name: str
    topology: Mapping[str, tuple[str, ...]]
    modules: Mapping[str, ModuleRanks]
    executions: Mapping[str, ModuleExecution]
    batch: BatchPlan
    bridges: tuple[Bridge, ...]
    program: PipelinePlan
    replicas: ReplicaPlan | None = None

    @property
    def pipeline(self) -> PipelinePlan | None:
        """The order in which stages work; None if no module is cut into stages.

        Encoders on the ranks of a pipeline are no stages of it; `program` has their steps, too.
        """
        return self.program if self.deployment_mode == "heterogeneous" else self.program.line

    @property
    def colocated_bridges(self) -> tuple[ColocatedBridge, ...]:
        """The bridges between modules on shared ranks."""
        return tuple(bridge for bridge in self.bridges if isinstance(bridge, ColocatedBridge))

    @property
    def disjoint_bridges(self) -> tuple[DisjointBridge, ...]:
        """The bridges between modules on separate ranks, and to the first stage of a pipeline."""
        return tuple(bridge for bridge in self.bridges if isinstance(bridge, DisjointBridge))

    @property
    def optimizer_options(self) -> dict[str, dict[str, float]]:
        """Module -> the options of its optimizer, if some are not those of the run."""
        options = {name: module.optimizer_options for name, module in self.executions.items()}
        return {name: of_module for name, of_module in options.items() if of_module}

    def edge_route(self, edge: StageEdge, *, backward: bool) -> Route | None:
        """Return the route of an edge between modules in one direction; None inside a module."""
        stages = self.program.graph.stages
        ends = stages[edge.source].module, stages[edge.destination].module
        for bridge in self.disjoint_bridges:
            if (bridge.source, bridge.destination) == ends:
                return bridge.backward if backward else bridge.forward
        return None

    def edge_transfers(self, edge: StageEdge, *, backward: bool) -> tuple[Transfer, ...]:
        """Return what crosses an edge of the pipeline, in one direction, per micro-batch.

        Between modules it is the route of their bridge. Inside a module every rank sends to its
        peer, the rank with the same coordinates in the other stage.

        Raises:
            ValueError: the plan has no pipeline.
        """
        if self.pipeline is None:
            raise ValueError("the layout has no pipeline")
        route = self.edge_route(edge, backward=backward)
        if route is not None:
            return route.transfers
        samples = self.batch.modules[edge.modality].samples
        senders = self.program.ranks[edge.destination if backward else edge.source]
        return tuple(
            Transfer(rank, self.program.peer(rank, edge), *samples[rank]) for rank in senders
        )

    def groups_key(self, name: str) -> tuple[object, ...]:
        """Return what a module has alike with exactly those whose process groups it shares."""
        ranks, execution = self.modules[name], self.executions[name]
        shape = ranks.shape, ranks.expert_view().shape, ranks.rank_offset
        key = (*shape, execution.size(Choice.OPTIMIZER_INSTANCES), self.has_embedding_group(name))
        # Not every rank starts the reductions of two modules in one order: a replica without items
        # has no backward of its encoder. With a group for each module, orders may differ.
        return (*key, name) if execution.overlap_reduction else key

    def has_embedding_group(self, name: str) -> bool:
        """Return whether both ends of a module's pipeline may have a copy of the embedding."""
        return name == self.llm_module_name and self.modules[name].pipeline_parallel > 1

    def of_replica(self, replica: int) -> LayoutPlan:
        """Return the plan of one replica, whose ranks count from 0 and form a world."""
        if self.replicas is None:
            return self
        batch = replace(self.batch, replica=replica, replicas=self.replicas.replicas)
        ranks = self.replicas.layout_ranks
        return replace(self, world_size=ranks, batch=batch, replicas=None)

    def __repr__(self) -> str:
        modules = ", ".join(f"{name} on {len(ranks.ranks)}" for name, ranks in self.modules.items())
        layout = f"{self.deployment_mode}, {counted(self.world_size, 'rank')}"
        return f"<{type(self).__name__}: {layout}; {modules}>"
