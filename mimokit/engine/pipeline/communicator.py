"""Communication between pipeline stages."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from mimokit.axes import Axis
from mimokit.engine.bridges.checks import ReplicaCheck
from mimokit.engine.bridges.messages import Mailbox, described, room_for_header
from mimokit.engine.bridges.routes import Direction, RouteCommunicator, both_ways
from mimokit.engine.device import group_timeout, rank_device
from mimokit.engine.megatron import HyperCommGrid
from mimokit.engine.pipeline.base_stage import PipelineStage, ShapeMismatchError
from mimokit.engine.ragged import Ragged
from mimokit.planning.message_order import Channel, channels, check_messages
from mimokit.planning.message_tags import Tag
from mimokit.planning.schedule import StageEdge
from mimokit.planning.types import DisjointBridge, LayoutPlan, PipelinePlan
from mimokit.units import counted


class MultiModulePipelineCommunicator:
    """Carries activations (direction 0) and gradients (1) over the edges of the stage graph.

    Messages between modules follow the bridge plan; a message within a module goes to the rank with
    the same coordinates in the next stage.

    Args:
        module_to_model_map: the modules on this rank, to check their names against the plan.

    Attributes:
        stages: indices of the stages that this rank works on.
        replica_checks: of the modules on this rank that feed others.
    """

    def __init__(
        self,
        module_to_grid_map: Mapping[str, HyperCommGrid],
        topology: Mapping[str, Sequence[str]],
        plan: LayoutPlan,
        module_to_model_map: Mapping[str, torch.nn.Module] | None = None,
    ) -> None:
        """Create the groups of all bridges. Collective over the world.

        Raises:
            ValueError: the topology is not the plan's, or the plan has another module on this rank.
        """
        if {name: tuple(fed) for name, fed in topology.items()} != dict(plan.topology):
            raise ValueError(f"The topology is {dict(topology)}, but the plan's {plan.topology}.")
        self._plan, self._rank = plan, dist.get_rank()
        stages = plan.program.stages_of(self._rank)
        self.stages = tuple(stage.index for stage in stages)
        modules = dict.fromkeys(stage.module for stage in stages)
        if module_to_model_map is not None and list(module_to_model_map) != list(modules):
            raise ValueError(
                f"Rank {self._rank} holds {list(module_to_model_map)}, but the plan has "
                f"{', '.join(map(repr, modules))} there."
            )
        self.mailbox = new_mailbox(plan)
        self._groups = {
            name: module_to_grid_map[name].get_pg([Axis.TENSOR, Axis.CONTEXT, Axis.DATA])
            for name in modules
        }
        self.replica_checks: list[ReplicaCheck] = []
        for bridge in plan.disjoint_bridges:
            group = module_to_grid_map[bridge.source].get_pg([Axis.TENSOR, Axis.CONTEXT])
            if bridge.source in modules and group is not None:
                self.replica_checks.append(ReplicaCheck(bridge.source, group))
        self._routes = self._all_routes()

    @property
    def pipeline(self) -> PipelinePlan:
        """The order in which stages work."""
        return self._plan.program

    def send(self, message: Ragged, edge: StageEdge, microbatch: int, direction: Direction) -> None:
        """Start sending a message and return."""
        route = self._routes.get((edge.index, direction))
        if route is not None:
            route.send(message, microbatch)
            return
        peer = self.pipeline.peer(self._rank, edge)
        self.mailbox.send_message(message, peer, self._tag(edge, microbatch, direction))

    def receive(self, edge: StageEdge, microbatch: int, direction: Direction) -> Ragged:
        """Wait for a message and return it as it was passed to `send`."""
        route = self._routes.get((edge.index, direction))
        if route is not None:
            return route.receive(microbatch)
        peer = self.pipeline.peer(self._rank, edge)
        return self.mailbox.receive_message(peer, self._tag(edge, microbatch, direction))

    def wait(self) -> None:
        """Wait until all sent messages have arrived."""
        self.mailbox.wait()

    def agree(self, stages: Mapping[int, PipelineStage]) -> dict[int, Ragged]:
        """Agree on shapes and types over the whole graph before any message is sent. Collective.

        The first rank of every stage receives the shapes of the stages before it and broadcasts
        them to its stage; each rank then returns the output shapes of its stages.

        Raises:
            ShapeMismatchError: two stages disagree with each other or with the planned slots.
        """
        agreed: dict[int, Ragged] = {}
        for index in sorted(stages):
            agreed[index] = self._agree(index, stages[index], agreed)
        self.wait()  # not before: a stage of this rank may be what another rank waits for
        return agreed

    def _agree(self, index: int, stage: PipelineStage, agreed: Mapping[int, Ragged]) -> Ragged:
        incoming = self.pipeline.graph.incoming[index]
        given = {
            edge.index: agreed[edge.source] if edge.source in agreed else self._shapes_of(edge)
            for edge in incoming
        }
        for edge in incoming:
            self._check_slots(edge, given[edge.index])
        shapes = stage.infer(given)
        for edge in self.pipeline.graph.outgoing[index]:
            if self._rank == self._leader(index) and edge.destination not in self.stages:
                leader, tag = self._leader(edge.destination), self._tag(edge, 0, 0)
                sent = shapes.carrying(stage.part_for(edge.index, shapes.tensor))
                self.mailbox.send_shapes(sent, leader, tag)
        return shapes

    def _shapes_of(self, edge: StageEdge) -> Ragged:
        header = room_for_header()
        leader = self._leader(edge.destination)
        if self._rank == leader:
            tag = self._tag(edge, 0, 0)
            header = self.mailbox.receive_header(self._leader(edge.source), tag)
        group = self._groups[self.pipeline.graph.stages[edge.destination].module]
        if group.size() > 1:
            dist.broadcast(header, leader, group=group)
        return described(header)

    def _check_slots(self, edge: StageEdge, shapes: Ragged) -> None:
        planned, sent = len(self.pipeline.slots.edges[edge.index]) - 1, len(shapes.known)
        if sent != planned:
            raise ShapeMismatchError(
                f"{edge.modality!r} is to send {counted(sent, 'tensor')} to stage "
                f"{edge.destination}, but the plan has {counted(planned, 'slot')} for them."
            )

    def _leader(self, stage: int) -> int:
        return self.pipeline.ranks[stage][0]

    def _tag(self, edge: StageEdge, microbatch: int, direction: Direction) -> Tag:
        return Tag(direction, edge.index, microbatch, self.pipeline.slots.edges[edge.index].start)

    def _all_routes(self) -> dict[tuple[int, int], RouteCommunicator]:
        batch, checks = self._plan.batch.modules, {c.source: c for c in self.replica_checks}
        routes: dict[tuple[int, int], RouteCommunicator] = {}
        for bridge in self._plan.disjoint_bridges:
            edges = _edges_of(bridge, self.pipeline)
            ways = both_ways(
                bridge,
                (batch[bridge.source].samples, batch[bridge.destination].samples),
                self.mailbox,
                edges[0].index,
                self.pipeline.slots.edges[edges[0].index].start,
                kinds=2 if bridge.source in self.pipeline.with_grids else 1,
                replicas=checks.get(bridge.source),
            )
            for edge in edges:
                if {edge.source, edge.destination}.intersection(self.stages):
                    routes |= {(edge.index, way): ways[way] for way in (0, 1)}
        return routes


def new_mailbox(plan: LayoutPlan) -> Mailbox:
    """Return a mailbox whose messages never reach another model. Collective over the world.

    On GPUs each edge has a group per direction; see `Mailbox`.

    Raises:
        ScheduleError: ranks would wait for each other on these groups.
    """
    device = rank_device()
    groups: dict[Channel, dist.ProcessGroup] = {}
    if device.type == "cuda" and "nccl" in str(dist.get_backend_config()):
        check_messages(plan)
        groups = {channel: dist.new_group(timeout=group_timeout()) for channel in channels(plan)}
    return Mailbox(device, dist.new_group(timeout=group_timeout()), groups)


def _edges_of(bridge: DisjointBridge, pipeline: PipelinePlan) -> tuple[StageEdge, ...]:
    graph = pipeline.graph
    ends = bridge.source, bridge.destination
    modules = [stage.module for stage in graph.stages]
    return tuple(e for e in graph.edges if (modules[e.source], modules[e.destination]) == ends)
