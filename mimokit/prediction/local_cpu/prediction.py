"""Predict a training step of mimokit's own engine on ranks that share the cores of a machine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mimokit.config import ExperimentConfig
from mimokit.config.errors import ConfigError, Problem
from mimokit.planning.bridges.routes import Route, counted_samples
from mimokit.planning.layout import plan_layout
from mimokit.planning.schedule import Action, Stage, StageEdge
from mimokit.planning.schedule.simulation import WEIGHT_SHARE
from mimokit.planning.types import ColocatedBridge
from mimokit.prediction.local_cpu.cost_model import SharedCosts
from mimokit.prediction.local_cpu.simulator import (
    Operation,
    Program,
    RankSpan,
    Recv,
    Send,
    Span,
    run_shared,
)
from mimokit.prediction.local_cpu.step_costs import SCALAR_BYTES, StepCosts, step_costs
from mimokit.step_kinds import (
    COMPUTATIONS,
    MODULE_PHASES,
    RECEIVES,
    REMAINDER,
    SENDS,
    UPDATE,
    Phase,
    StepKind,
)

_PHASES = {str(kind): kind.phase for kind in StepKind}


@dataclass(frozen=True)
class SharedPrediction:
    """One predicted step on shared cores.

    Attributes:
        parts: CPU seconds of all ranks, by module and kind of step.
    """

    name: str
    seconds: float
    cores: float
    cpu_seconds: tuple[float, ...]
    critical_path: float
    parts: Mapping[Span, float]
    spans: tuple[RankSpan, ...]

    @property
    def bound(self) -> float:
        """Lower bound of the step: the larger of critical path and CPU seconds per core."""
        return max(self.critical_path, sum(self.cpu_seconds) / self.cores)

    def phases(self) -> dict[tuple[str, str], float]:
        """Return (module, phase) -> seconds of a step, including waits, mean over the ranks.

        The phases are those of `mimokit.analysis.phase_times`. The module is "" for a phase that
        belongs to no module.
        """
        ranks = len(self.cpu_seconds)
        seconds: dict[tuple[str, str], float] = defaultdict(float)
        for span in self.spans:
            seconds[_phase(span.span)] += (span.stop - span.start) / ranks
        seconds["", REMAINDER] += self.seconds - sum(seconds.values())
        return dict(seconds)


def _phase(span: Span) -> tuple[str, str]:
    phase = _PHASES[span.kind]
    if phase in MODULE_PHASES:
        return span.module or "", phase
    return "", REMAINDER if phase == Phase.REPORT else phase


def predict_shared(
    config: ExperimentConfig,
    costs: SharedCosts,
    cores: float,
    items_per_sample: Mapping[str, float] | None = None,
) -> SharedPrediction:
    """Predict the step of a layout whose ranks are all on one machine.

    Args:
        cores: CPU seconds per second of all ranks together: `Calibration.cores`.
        items_per_sample: encoder -> average number of items per sample; by default the maximum.

    Raises:
        ConfigError: the layout is wrong, or has parts that calibration does not measure.
        ValueError: there are no cores.
    """
    plan = plan_layout(config).of_replica(0)
    at_work = costs.at(plan.world_size)
    if plan.world_size > 1 and at_work.pieces and not at_work.collectives:
        sentence = (
            f"Prediction: the layout has {plan.world_size} ranks, but the machine was calibrated "
            "with one engine, which measures no collectives; calibrate 2 or more engines."
        )
        raise ConfigError([Problem("prediction", "hardware", None, sentence)])
    step = step_costs(config, plan, at_work, items_per_sample)
    programs = rank_programs(step)
    run = run_shared(programs, cores * at_work.busy)
    return SharedPrediction(
        name=config.name,
        seconds=run.seconds,
        cores=cores,
        cpu_seconds=run.cpu_seconds,
        critical_path=run_shared(programs, float(len(programs))).seconds,
        parts=_parts(programs),
        spans=run.spans,
    )


def _parts(programs: Sequence[Program]) -> dict[Span, float]:
    parts: dict[Span, float] = defaultdict(float)
    for program in programs:
        for operation in program:
            parts[operation.span] += operation.seconds
    return dict(parts)


def rank_programs(step: StepCosts) -> list[list[Operation]]:
    """Return the program of each rank."""
    return [_RankProgram(step, rank).operations() for rank in range(step.plan.world_size)]


class _RankProgram:
    def __init__(self, step: StepCosts, rank: int) -> None:
        self._step, self._rank = step, rank
        self._pipeline = step.plan.program
        self._bridges = {bridge.source: bridge for bridge in step.plan.colocated_bridges}

    def operations(self) -> list[Operation]:
        """Return all operations of a step."""
        operations: list[Operation] = []
        for action in self._pipeline.actions(self._rank):
            if action.kind not in UPDATE:
                operations += self._operations(action)
        return operations + self._step.update(self._rank)

    def _operations(self, action: Action) -> list[Operation]:
        kind = action.kind
        if kind == StepKind.LOAD:
            return self._load()
        if kind in (StepKind.SLICE, StepKind.LOSS):
            return []  # calibrated with the reading and with the language model
        if kind == StepKind.FORWARD:
            return [self._step.one_pass(self._stage(action), "forward", self._rank)]
        if kind in COMPUTATIONS[1:]:
            share = WEIGHT_SHARE if action.stage in self._pipeline.schedule.split else 1.0
            return [self._step.one_pass(self._stage(action), "backward", self._rank, share)]
        bridge = self._bridges.get(self._stage(action).module)
        if kind == StepKind.GATHER and bridge is not None:
            return self._gather(bridge)
        if kind == StepKind.SCATTER and bridge is not None:
            return self._scatter(bridge)
        assert action.edge is not None
        edge = self._pipeline.graph.edges[action.edge]
        forward = kind == StepKind.GATHER or kind.endswith("forward")
        sent = [] if kind in RECEIVES else self._transfers(edge, forward, action, sending=True)
        if kind in SENDS:
            return sent
        received = self._transfers(edge, forward, action, sending=False)
        return sent + received + self._share(edge, forward, action)

    def _stage(self, action: Action) -> Stage:
        assert action.stage is not None
        return self._pipeline.graph.stages[action.stage]

    def _load(self) -> list[Operation]:
        read = self._step.plan.batch.read_by(self._rank)
        return [] if read is None else [self._step.load(read[1] - read[0])]

    def _gather(self, bridge: ColocatedBridge) -> list[Operation]:
        """Return the comparison of the source's tensor-parallel ranks, and the gather."""
        ranks = self._step.plan.modules[bridge.source].group_of(self._rank, "tp")
        span = Span(bridge.source, StepKind.GATHER)
        compared = self._step.shared("all-gather", span, ranks, 3.0 * SCALAR_BYTES)
        return compared + (self._rows(bridge, span) if bridge.direction == "fan_in" else [])

    def _scatter(self, bridge: ColocatedBridge) -> list[Operation]:
        span = Span(bridge.source, StepKind.SCATTER)
        return self._rows(bridge, span) if bridge.direction == "fan_out" else []

    def _rows(self, bridge: ColocatedBridge, span: Span) -> list[Operation]:
        """Return a gather of the rows of the larger micro-batch of the two modules."""
        members = next(group for group in bridge.gather_groups if self._rank in group)
        samples = max(self._step.samples(name) for name in (bridge.source, bridge.destination))
        size = self._step.module(bridge.source).row_bytes(samples)
        return self._step.shared("all-gather", span, members, size)

    def _transfers(
        self, edge: StageEdge, forward: bool, action: Action, *, sending: bool
    ) -> list[Operation]:
        """Return the messages that an action sends, or that it receives."""
        operations: list[Operation] = []
        # Both ends of a bridge to a pipeline have edges of their own.
        bridged = edge.index in self._pipeline.graph.bridged
        which = edge.modality if bridged else edge.index
        for other, size, split in self._messages(edge, forward, sending):
            ends = (self._rank, other) if sending else (other, self._rank)
            key = (which, forward, action.microbatch, *ends, split)
            span, seconds = Span(None, action.kind), self._step.costs.message(size)
            operations.append((Send if sending else Recv)(span, seconds, key))
        return operations

    def _messages(
        self, edge: StageEdge, forward: bool, sending: bool
    ) -> list[tuple[int, float, int]]:
        """Return (peer rank, bytes, index within the pair of ranks) per message."""
        route = self._step.plan.edge_route(edge, backward=not forward)
        if route is None:
            hidden = self._step.module(edge.modality)
            peer = self._pipeline.peer(self._rank, edge)
            return [(peer, hidden.hidden_bytes(self._step.samples(edge.modality)), 0)]
        rows = self._step.module(edge.modality)
        ends = [(t.source_rank, t.destination_rank, t.stop - t.start) for t in route.transfers]
        if not sending:
            ends = [(destination, source, count) for source, destination, count in ends]
        seen: Counter[int] = Counter()
        messages = []
        for end, other, count in ends:
            if end == self._rank != other:
                messages.append((other, rows.row_bytes(count), seen[other]))
                seen[other] += 1
        return messages

    def _share(self, edge: StageEdge, forward: bool, action: Action) -> list[Operation]:
        """Return the operations that share received rows within a group of receivers."""
        route = self._step.plan.edge_route(edge, backward=not forward)
        members = next((g for g in route.groups if self._rank in g), None) if route else None
        if route is None or members is None:
            return []
        here = edge.destination if forward else edge.source
        samples = self._step.samples(self._pipeline.graph.stages[here].module)
        rows = self._step.module(edge.modality).row_bytes(samples)
        sizes = [rows]
        stages = self._pipeline.graph.stages
        ends = stages[edge.source].module, stages[edge.destination].module
        if route.form == "leader" or not self._counts_are_complete(
            route, *(ends if forward else reversed(ends))
        ):
            sizes.insert(0, float(SCALAR_BYTES * samples))
        kind: Literal["broadcast", "all-gather"]
        kind = "broadcast" if route.form == "leader" else "all-gather"
        span = Span(None, action.kind)
        return [each for size in sizes for each in self._step.shared(kind, span, members, size)]

    def _counts_are_complete(self, route: Route, sender: str, taker: str) -> bool:
        """Return whether the messages to this rank count the rows of all samples of its replica.

        Otherwise the ranks of the replica gather the counts first.
        """
        batch = self._step.plan.batch.modules
        sent, taken = batch[sender].samples, batch[taker].samples
        start, stop = taken[self._rank]
        counted = [
            counted_samples(transfer.ends, sent, taken)
            for transfer in route.transfers
            if transfer.destination_rank == self._rank
        ]
        return sum(last - first for first, last in counted) == stop - start
