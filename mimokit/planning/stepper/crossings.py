"""The samples that cross between ranks at a tick: as planned, and as both ends saw them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from mimokit.planning.bridges.routes import numbered
from mimokit.planning.pipeline import PipelinePlan
from mimokit.planning.schedule import Action
from mimokit.planning.stepper.clock import PlannedStep, Tick
from mimokit.planning.types import ColocatedBridge, LayoutPlan
from mimokit.step_kinds import BRIDGES, SENDS, StepKind

INPUT = ""
"""The source of what an encoder reads: no module has this name."""


@dataclass(frozen=True, order=True)
class Crossing:
    """Samples of a micro-batch that a rank gives to another, or keeps (both ends are one rank).

    What an encoder reads is one, too: what one process reads is given, what the encoder of the rank
    is called with is taken.

    Attributes:
        source: module that sends forward; INPUT for the inputs of an encoder.
        destination: module that receives forward; `source` itself between its pipeline stages.
        backward: a gradient crosses, from the destination to the source.
    """

    source: str
    destination: str
    backward: bool
    microbatch: int
    source_rank: int
    destination_rank: int
    start: int
    stop: int

    def __str__(self) -> str:
        what = "gradient" if self.backward else "output"
        samples = f"sample {self.start}"
        if self.stop - self.start != 1:
            samples = f"samples {self.start} to {self.stop - 1}"
        if self.source == INPUT:
            return (
                f"input of {self.destination!r} for {samples} of micro-batch {self.microbatch} "
                f"on rank {self.destination_rank}"
            )
        return (
            f"{what} of {self.source!r} for {samples} of micro-batch {self.microbatch} "
            f"from rank {self.source_rank} to rank {self.destination_rank}"
        )


@dataclass(frozen=True)
class SeenCrossing:
    """A crossing as one end saw it.

    Attributes:
        sent: seen by the rank that gives; False: by the rank that takes.
        prints: fingerprints of the bits, one per sample; one of all rows if it is not known which
            rows belong to which sample.
        held: fingerprints of what the sender stores for these samples; None: what it gave, or not
            known.
        code: the line that did it, after a line "file:number".
    """

    crossing: Crossing
    sent: bool
    shape: tuple[int, ...]
    bytes: int
    prints: tuple[str, ...]
    held: tuple[str, ...] | None = None
    code: str = ""


def planned_crossings(plan: LayoutPlan, tick: Tick) -> tuple[tuple[Crossing, bool], ...]:
    """Return the planned crossings of a tick, each with True if sent, False if received."""
    of_ranks = (_of_rank(plan, rank, step) for rank, step in tick.steps.items())
    return tuple(sorted(set(chain.from_iterable(of_ranks))))


def _of_rank(plan: LayoutPlan, rank: int, step: PlannedStep) -> Iterator[tuple[Crossing, bool]]:
    bridges = {bridge.source: bridge for bridge in plan.colocated_bridges}
    bridge = bridges.get(step.module or "")
    if step.name in BRIDGES and bridge is not None:
        assert step.microbatch is not None
        backward = step.name == StepKind.SCATTER
        for crossing in colocated_crossings(bridge, backward, step.microbatch):
            if crossing.source_rank == rank:
                yield crossing, True
            if crossing.destination_rank == rank:
                yield crossing, False
    elif step.action is not None and step.action.edge is not None:
        bridged, sends = step.name in BRIDGES, step.name in SENDS
        for crossing, _ in edge_crossings(plan, plan.program, step.action):
            if (sends or bridged) and rank == crossing.source_rank:
                yield crossing, True
            if not sends and rank == crossing.destination_rank:
                yield crossing, False


def colocated_crossings(
    bridge: ColocatedBridge, backward: bool, microbatch: int
) -> tuple[Crossing, ...]:
    """Return what crosses a bridge between modules on the same ranks.

    If pieces are gathered, every rank of a group takes from every rank of it; if they are sliced,
    every rank keeps its slice. A bridge on which nothing moves has no crossings.
    """
    if bridge.direction == "equal":
        return ()
    gathers = (bridge.direction == "fan_in") != backward
    way = (bridge.source, bridge.destination, backward, microbatch)
    crossings = []
    for group in bridge.gather_groups:
        for taker in group:
            for giver in group if gathers else (taker,):
                crossings.append(Crossing(*way, giver, taker, *bridge.pieces[giver]))
    return tuple(crossings)


def edge_crossings(
    plan: LayoutPlan, pipeline: PipelinePlan, action: Action
) -> tuple[tuple[Crossing, int], ...]:
    """Return what crosses an edge of the stage graph with an action, and the split of its tag.

    The split numbers the messages of one pair of ranks.
    """
    edge = pipeline.graph.edges[action.edge] if action.edge is not None else None
    assert edge is not None
    assert action.microbatch is not None
    backward = action.kind == StepKind.SCATTER or action.kind.endswith("backward")
    stages = pipeline.graph.stages
    modules = stages[edge.source].module, stages[edge.destination].module
    way = (*modules, backward, action.microbatch)
    return tuple(
        (Crossing(*way, *transfer.ends, transfer.start, transfer.stop), split)
        for transfer, split in numbered(plan.edge_transfers(edge, backward=backward))
    )


@dataclass(frozen=True)
class TensorFacts:
    """Shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class StepRecord:
    """The report of one rank on a tick.

    Attributes:
        number: of the tick, counted from the opening of the stepper.
        did: the step in words; None: it waited or had nothing to do.
        then: its next step, in words.
        code: the lines that did it, after a line "file:number".
        tensors: name -> facts of a tensor that it has afterwards.
        result: loss, grad_norm and num_tokens at the end of an optimizer step, else empty.
        inputs: of the encoders that ran, as one process reads them (sent) and as they came.
        inside: what took place inside the step, as traces call it -> how often, and seconds.
    """

    number: int
    rank: int
    did: str | None
    then: str
    seconds: float = 0.0
    code: str = ""
    pieces: tuple[SeenCrossing, ...] = ()
    tensors: dict[str, TensorFacts] = field(default_factory=dict)
    result: dict[str, float] = field(default_factory=dict)
    inputs: tuple[SeenCrossing, ...] = ()
    inside: dict[str, tuple[int, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class PieceRows:
    """The rows of a piece at one end.

    Attributes:
        own: what was sent, or what came.
        held: of a sender, the tensor from which they are to be cut; None: not known.
        first: their first row in that tensor, as planned.
    """

    own: NDArray[np.float64]
    held: NDArray[np.float64] | None = None
    first: int = 0


@dataclass(frozen=True)
class PlanDifference:
    """One difference between plan and run.

    Attributes:
        planned: what the plan, or the sender, gives.
        how: what came instead, as a sentence's end; empty if that is not known.
    """

    crossing: Crossing
    planned: str
    happened: str
    how: str = ""
    sent: bool = False

    def __str__(self) -> str:
        how = f": {self.how}" if self.how else ""
        return f"The {self.crossing}: planned {self.planned}, but {self.happened}{how}."


def differences(
    planned: Iterable[tuple[Crossing, bool]],
    pieces: Iterable[SeenCrossing],
    sent: Mapping[Crossing, SeenCrossing],
) -> tuple[PlanDifference, ...]:
    """Compare what ranks saw at a tick with the plan, and received contents with sent ones."""
    wanted = dict.fromkeys(planned)
    seen: dict[tuple[Crossing, bool], SeenCrossing] = {}
    differing = []
    for piece in pieces:
        key, verb = (piece.crossing, piece.sent), _verb(piece.sent)
        if key not in wanted and piece.crossing.source != INPUT:
            differing.append(PlanDifference(piece.crossing, "nothing", f"it was {verb}"))
        elif key in seen:
            differing.append(PlanDifference(piece.crossing, "once", f"it was {verb} twice"))
        seen[key] = piece
        differing.extend(_contents(piece, sent.get(piece.crossing)))
    for crossing, is_sent in wanted:
        if (crossing, is_sent) not in seen:
            differing.append(PlanDifference(crossing, "to cross", f"it was not {_verb(is_sent)}"))
    return tuple(differing)


def _verb(sent: bool) -> str:
    return "sent" if sent else "received"


def _contents(piece: SeenCrossing, sent: SeenCrossing | None) -> Iterator[PlanDifference]:
    crossing = piece.crossing
    if piece.sent:
        if piece.held is not None and piece.held != piece.prints:
            which = _which(crossing, piece.held, piece.prints)
            yield PlanDifference(
                crossing,
                f"what rank {crossing.source_rank} has for {which}",
                "it sent other rows",
                sent=True,
            )
    elif sent is not None and sent.shape != piece.shape:
        yield PlanDifference(
            crossing, f"the shape {list(sent.shape)} that was sent", f"{list(piece.shape)} came"
        )
    elif sent is not None and sent.prints != piece.prints:
        which = _which(crossing, sent.prints, piece.prints)
        if crossing.source == INPUT:
            giver, taken = "one process reads", "its encoder takes other values"
        else:
            giver = f"rank {crossing.source_rank} gave"
            taken = f"rank {crossing.destination_rank} has other values"
        yield PlanDifference(crossing, f"what {giver} for {which}", taken)


def _which(crossing: Crossing, wanted: tuple[str, ...], got: tuple[str, ...]) -> str:
    if not len(wanted) == len(got) == crossing.stop - crossing.start:
        return f"samples {crossing.start} to {crossing.stop - 1}"
    pairs = enumerate(zip(wanted, got, strict=True), start=crossing.start)
    wrong = [str(sample) for sample, (planned, seen) in pairs if planned != seen]
    return f"sample{'s' if len(wrong) > 1 else ''} {', '.join(wrong)}"
