"""The operations of every rank in one step, by deployment mode.

Modules that share their ranks follow the schedule of `mimokit.engine.colocated.schedule`. Modules
on separate ranks follow the actions of the pipeline plan.
"""

from __future__ import annotations

from collections import Counter

from mimokit.planning.bridges.edges import edge_route
from mimokit.planning.bridges.routes import Route, counted_samples
from mimokit.planning.schedule import Action, StageEdge
from mimokit.planning.types import ColocatedBridge, PipelinePlan
from mimokit.prediction.local_cpu.simulator import Operation, Recv, Send, Span
from mimokit.prediction.local_cpu.step_costs import SCALAR_BYTES, StepCosts
from mimokit.step_kinds import UPDATE, StepKind


def shared_rank_programs(step: StepCosts) -> list[list[Operation]]:
    """Return the program of each rank."""
    return [_shared_rank_program(step, rank) for rank in range(step.plan.world_size)]


def _shared_rank_program(step: StepCosts, rank: int) -> list[Operation]:
    program: list[Operation] = []
    for _ in range(step.plan.batch.num_microbatches):
        program += _microbatch(step, rank)
    return program + step.update(rank)


def _microbatch(step: StepCosts, rank: int) -> list[Operation]:
    language = step.plan.llm_module_name
    start, stop = step.plan.batch.modules[language].loaded[rank]
    program: list[Operation] = [step.load(stop - start)]
    bridges = step.plan.colocated_bridges
    for bridge in bridges:
        program.append(step.one_pass(bridge.source, "forward", rank))
        tensor_group = step.plan.modules[bridge.source].group_of(rank, "tp")
        program += step.gather(
            Span(bridge.source, StepKind.GATHER), tensor_group, 3.0 * SCALAR_BYTES
        )
        if bridge.direction == "fan_in":
            program += _gather(step, bridge, rank, StepKind.GATHER)
    program.append(step.one_pass(language, "forward", rank))
    program.append(step.one_pass(language, "backward", rank))
    for bridge in bridges:
        if bridge.direction == "fan_out":
            program += _gather(step, bridge, rank, StepKind.SCATTER)
        program.append(step.one_pass(bridge.source, "backward", rank))
    return program


def _gather(step: StepCosts, bridge: ColocatedBridge, rank: int, kind: StepKind) -> list[Operation]:
    """Return the gather of a bridge, over the rows of the larger micro-batch of its two modules."""
    members = next(group for group in bridge.gather_groups if rank in group)
    samples = max(step.samples(name) for name in (bridge.source, bridge.destination))
    size = step.module(bridge.source).row_bytes(samples)
    return step.gather(Span(bridge.source, kind), members, size)


def separate_rank_programs(step: StepCosts) -> list[list[Operation]]:
    """Return the program of each rank."""
    assert step.plan.pipeline is not None
    return [
        _RankProgram(step, step.plan.pipeline, rank).operations()
        for rank in range(step.plan.world_size)
    ]


class _RankProgram:
    def __init__(self, step: StepCosts, pipeline: PipelinePlan, rank: int) -> None:
        self._step, self._pipeline, self._rank = step, pipeline, rank
        self._module = pipeline.stage_of(rank).module
        self._edges = {edge.index: edge for edge in pipeline.graph.edges}

    def operations(self) -> list[Operation]:
        """Return all operations of a step."""
        found: list[Operation] = []
        for action in self._pipeline.actions(self._rank):
            if action.kind not in UPDATE:
                found += self._operations(action)
        return found + self._step.update(self._rank)

    def _operations(self, action: Action) -> list[Operation]:
        if action.kind == StepKind.LOAD:
            return self._load()
        if action.kind == StepKind.FORWARD:
            return [self._step.one_pass(self._module, "forward", self._rank)]
        if action.kind == StepKind.BACKWARD:
            return [self._step.one_pass(self._module, "backward", self._rank)]
        assert action.edge is not None
        edge = self._edges[action.edge]
        forward = action.kind.endswith("forward")
        if action.kind.startswith("send"):
            return self._send(edge, forward, action)
        return self._receive(edge, forward, action)

    def _load(self) -> list[Operation]:
        batch = self._step.plan.batch.modules[self._module]
        if self._rank not in batch.loads:
            return []
        return [self._step.load(batch.micro_batch_size)]

    def _send(self, edge: StageEdge, forward: bool, action: Action) -> list[Operation]:
        begin = (edge.index, forward, action.microbatch)
        return [
            Send(
                Span(None, action.kind),
                self._step.costs.message(size),
                (*begin, self._rank, other, split),
            )
            for other, size, split in self._messages(edge, forward, sending=True)
        ]

    def _receive(self, edge: StageEdge, forward: bool, action: Action) -> list[Operation]:
        begin = (edge.index, forward, action.microbatch)
        found: list[Operation] = [
            Recv(
                Span(None, action.kind),
                self._step.costs.message(size),
                (*begin, other, self._rank, split),
            )
            for other, size, split in self._messages(edge, forward, sending=False)
        ]
        return found + self._share(edge, forward, action)

    def _messages(
        self, edge: StageEdge, forward: bool, sending: bool
    ) -> list[tuple[int, float, int]]:
        """Return (peer rank, bytes, index within the pair of ranks) per message."""
        route = edge_route(self._step.plan, edge, backward=not forward)
        if route is None:
            module = self._step.module(self._module)
            peer = self._pipeline.peer(self._rank, edge)
            return [(peer, module.hidden_bytes(self._step.samples(self._module)), 0)]
        rows = self._step.module(edge.modality)
        ends = [(t.source_rank, t.destination_rank, t.stop - t.start) for t in route.transfers]
        if not sending:
            ends = [(destination, source, count) for source, destination, count in ends]
        seen: Counter[int] = Counter()
        found = []
        for mine, other, count in ends:
            if mine == self._rank:
                found.append((other, rows.row_bytes(count), seen[other]))
                seen[other] += 1
        return found

    def _share(self, edge: StageEdge, forward: bool, action: Action) -> list[Operation]:
        """Return the operations that share received rows within a group of receivers."""
        route = edge_route(self._step.plan, edge, backward=not forward)
        members = next((g for g in route.groups if self._rank in g), None) if route else None
        if route is None or members is None:
            return []
        samples = self._step.samples(self._module)
        rows = self._step.module(edge.modality).row_bytes(samples)
        share = self._step.broadcast if route.form == "leader" else self._step.gather
        sizes = [rows]
        if route.form == "leader" or not self._counts_are_complete(route):
            sizes.insert(0, float(SCALAR_BYTES * samples))
        return [
            operation
            for size in sizes
            for operation in share(Span(None, action.kind), members, size)
        ]

    def _counts_are_complete(self, route: Route) -> bool:
        """Return whether the messages to this rank count the rows of all samples of its replica.

        Otherwise the ranks of the replica gather the counts first.
        """
        batch = self._step.plan.batch.modules
        samples = {rank: held for module in batch.values() for rank, held in module.samples.items()}
        start, stop = samples[self._rank]
        counted = [
            counted_samples(transfer.ends, samples)
            for transfer in route.transfers
            if transfer.destination_rank == self._rank
        ]
        return sum(last - first for first, last in counted) == stop - start
