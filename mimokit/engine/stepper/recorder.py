"""Records what this rank sends and receives during a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from mimokit.engine.bridges import colocated, messages
from mimokit.engine.bridges.colocated import ColocatedBridgeCommunicator
from mimokit.engine.bridges.messages import SeenMessage
from mimokit.engine.pipeline.executor import StageExecutor
from mimokit.engine.pipeline.model import RankModel
from mimokit.engine.ragged import Ragged
from mimokit.engine.stepper.rows import CrossingRows, copied, print_of, prints_of
from mimokit.engine.stepper.suspended_schedule import calling_line
from mimokit.planning.bridges.routes import counted_samples
from mimokit.planning.schedule import Action
from mimokit.planning.stepper import Crossing, SeenCrossing
from mimokit.planning.stepper.crossings import colocated_crossings, edge_crossings
from mimokit.step_kinds import StepKind

_HIDDEN = (__file__, str(Path(messages.__file__)), str(Path(colocated.__file__)))


class Watcher:
    """Collects the pieces that cross between ranks.

    Attributes:
        pieces: collected since the last `take`.
    """

    def __init__(self, model: RankModel) -> None:
        self.pieces: list[SeenCrossing] = []
        self._rows: dict[tuple[Crossing, bool], CrossingRows] = {}
        self.microbatch: int | None = None
        self.executor: StageExecutor | None = None
        self._model = model
        self._rank = dist.get_rank()
        if model.communicator is not None:
            model.mailbox.listeners.append(self._on_message)
        if model.forward_step is None:  # what crosses within one opaque step has no tick
            for bridge in model.bridges.values():
                bridge.listeners.append(_BridgeWatch(self, bridge))

    def take(self) -> tuple[tuple[SeenCrossing, ...], Mapping[tuple[Crossing, bool], CrossingRows]]:
        """Return the collected pieces and their rows, and remove them."""
        taken = tuple(self.pieces), self._rows
        self.pieces, self._rows = [], {}
        return taken

    def note(self, piece: SeenCrossing, rows: CrossingRows) -> None:
        """Collect a piece."""
        self.pieces.append(piece)
        self._rows[piece.crossing, piece.sent] = rows

    def _on_message(self, message: SeenMessage) -> None:
        model = self._model
        crossing = self._crossing(model, message)
        rows, counts = _rows_of(model, message, crossing)
        held = self._held(model, message, crossing) if message.sent else None
        piece = SeenCrossing(
            crossing=crossing,
            sent=message.sent,
            shape=tuple(rows.shape),
            bytes=rows.nbytes,
            prints=prints_of(rows, counts),
            held=None if held is None else held.prints,
            code=calling_line(*_HIDDEN),
        )
        if held is None:
            self.note(piece, CrossingRows(copied(rows)))
        else:
            self.note(piece, CrossingRows(copied(rows), copied(held.tensor), held.first))

    def _crossing(self, model: RankModel, message: SeenMessage) -> Crossing:
        tag, pipeline = message.tag, model.program
        kind = StepKind.SEND_BACKWARD if tag.direction else StepKind.SEND_FORWARD
        edge = pipeline.graph.edges[tag.edge]
        action = Action(kind, edge.source, tag.microbatch, tag.edge)
        ends = (self._rank, message.peer) if message.sent else (message.peer, self._rank)
        for crossing, split in edge_crossings(model.plan, pipeline, action):
            if (crossing.source_rank, crossing.destination_rank, split) == (*ends, tag.split):
                return crossing
        source, destination = (
            pipeline.graph.stages[end].module for end in (edge.source, edge.destination)
        )
        return Crossing(source, destination, bool(tag.direction), tag.microbatch, *ends, 0, 0)

    def _held(self, model: RankModel, message: SeenMessage, crossing: Crossing) -> _HeldRows | None:
        edges, end = model.program.graph.edges, "destination" if crossing.backward else "source"
        edge = edges[message.tag.edge]
        if getattr(edge, end) not in model.stages:  # a tag has the edge of the first set of ranks
            edge = next(
                other
                for other in edges
                if other.modality == edge.modality and getattr(other, end) in model.stages
            )
        here: int = getattr(edge, end)
        state = None if self.executor is None else self.executor.state(here, crossing.microbatch)
        if state is None:
            return None
        sent: Ragged
        if crossing.backward:
            sent = state.given.received[edge.index]
            tensor = sent.tensor.grad
        else:
            assert state.output is not None
            sent = state.output
            tensor = model.stages[here].part_for(edge.index, sent.tensor)
        assert tensor is not None
        within = crossing.source == crossing.destination
        counts = (sent.items if within else sent.samples) or []
        first, last = model.plan.batch.modules[model.stages[here].name].samples[self._rank]
        if len(counts) != last - first:
            return _HeldRows(tensor, prints_of(tensor, ()), 0)
        place, stop = crossing.start - first, crossing.stop - first
        return _HeldRows(tensor, prints_of(tensor, counts)[place:stop], sum(counts[:place]))


@dataclass(frozen=True)
class _HeldRows:
    """What a sender stores.

    Attributes:
        prints: of the samples that it is to send.
        first: the first row of these samples.
    """

    tensor: torch.Tensor
    prints: tuple[str, ...]
    first: int


def _rows_of(
    model: RankModel, message: SeenMessage, crossing: Crossing
) -> tuple[torch.Tensor, list[int]]:
    if crossing.source == crossing.destination:
        parts = dict(zip(message.fields, message.tensors, strict=True))
        return parts["tensor"], parts["items"].tolist() if "items" in parts else []
    if len(message.tensors) == 1:
        return message.tensors[0], []
    counts, rows = message.tensors[:2]  # then other kinds of rows
    batch = model.plan.batch.modules
    samples = batch[crossing.source].samples, batch[crossing.destination].samples
    ends = crossing.source_rank, crossing.destination_rank
    sent, taken = reversed(samples) if crossing.backward else samples
    first = crossing.start - counted_samples(ends, sent, taken)[0]
    return rows, counts.tolist()[first : first + crossing.stop - crossing.start]


class _BridgeWatch:
    def __init__(self, watcher: Watcher, bridge: ColocatedBridgeCommunicator) -> None:
        self._watcher = watcher
        self._bridge = bridge

    def __call__(
        self, direction: int, given: torch.Tensor, rows: Sequence[int], taken: torch.Tensor
    ) -> None:
        watcher, plan, code = self._watcher, self._bridge.plan, calling_line(*_HIDDEN)
        assert watcher.microbatch is not None
        rank, backward = watcher._rank, bool(direction)
        ends = self._bridge.ends[:: -1 if backward else 1]
        first = plan.wholes[rank][0]
        before, after = (
            _BridgeEnd(copied(tensor), range(*samples[rank]), rows, first)
            for tensor, samples in zip((given, taken), ends, strict=True)
        )
        for crossing in colocated_crossings(plan, backward, watcher.microbatch):
            samples = range(crossing.start, crossing.stop)
            if crossing.source_rank == rank:
                own, start = before.of(samples)
                watcher.note(
                    _piece(crossing, True, before, samples, code),
                    CrossingRows(own, before.rows, start),
                )
            if crossing.destination_rank == rank:
                watcher.note(
                    _piece(crossing, False, after, samples, code),
                    CrossingRows(after.of(samples)[0]),
                )


class _BridgeEnd:
    def __init__(
        self, rows: torch.Tensor, samples: range, rows_per_sample: Sequence[int], base: int
    ) -> None:
        self.rows, self._samples = rows, samples
        counts = list(rows_per_sample)[samples.start - base : samples.stop - base]
        self._counts = counts if sum(counts) == len(rows) else None

    def of(self, samples: range) -> tuple[torch.Tensor, int]:
        if self._counts is None:
            return self.rows, 0
        place = samples.start - self._samples.start
        first = sum(self._counts[:place])
        return self.rows.narrow(0, first, sum(self._counts[place : place + len(samples)])), first

    def prints(self, samples: range) -> tuple[str, ...]:
        return tuple(print_of(self.of(range(n, n + 1))[0]) for n in samples)


def _piece(
    crossing: Crossing, sent: bool, side: _BridgeEnd, samples: range, code: str
) -> SeenCrossing:
    rows, _ = side.of(samples)
    return SeenCrossing(
        crossing=crossing,
        sent=sent,
        shape=tuple(rows.shape),
        bytes=rows.nbytes,
        prints=side.prints(samples),
        code=code,
    )
