"""A pipeline of toy stages, one rank each: heads of text, audio and vision, packing, an end."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist

from mimokit.engine.bridges.messages import Mailbox
from mimokit.engine.pipeline.base_stage import PipelineStage, StageInput, StageOutput
from mimokit.engine.pipeline.packing import assemble, checked_grids
from mimokit.engine.ragged import Ragged
from mimokit.planning.message_tags import Tag
from mimokit.planning.pipeline import PipelinePlan
from mimokit.planning.schedule import Action, StageEdge, plan_schedule, stage_graph

HEADS = ("text", "audio", "vision")
SPECIAL = {"audio": 9, "vision": 8}
TOPOLOGY = {**dict.fromkeys(HEADS, ("join",)), "join": ()}
WIDTH = 3


@dataclass
class Direct:
    """Sends to the rank whose number is that of the stage."""

    pipeline: PipelinePlan
    stage_index: int
    mailbox: Mailbox

    def _place(self, edge: StageEdge, microbatch: int, direction: int) -> tuple[int, Tag]:
        other = edge.destination if edge.source == self.stage_index else edge.source
        slot = self.pipeline.slots.edges[edge.index].start
        return other, Tag(direction, edge.index, microbatch, slot)

    def send(self, message: Ragged, edge: StageEdge, microbatch: int, direction: int) -> None:
        self.mailbox.send_message(message, *self._place(edge, microbatch, direction))

    def receive(self, edge: StageEdge, microbatch: int, direction: int) -> Ragged:
        return self.mailbox.receive_message(*self._place(edge, microbatch, direction))

    def wait(self) -> None:
        self.mailbox.wait()


@dataclass
class ToyModel:
    """What an executor needs, without a layout."""

    program: PipelinePlan
    stages: dict[int, PipelineStage]
    communicator: Any
    plan: Any = None
    bridges: dict[str, Any] = field(default_factory=dict)
    special_token_ids: dict[str, int] = field(default_factory=dict)
    tokens_per_item: dict[str, int] = field(default_factory=dict)
    forward_step: Any = "that of the toys"  # their batches have keys of their own

    @property
    def actions(self) -> tuple[Action, ...]:
        return self.program.actions(dist.get_rank())

    @property
    def last_stage(self) -> PipelineStage:
        return list(self.stages.values())[-1]


class Toy(PipelineStage):
    """Multiplies by one number, which is trained."""

    def __init__(self, name: str, first: bool, last: bool, weight: float) -> None:
        super().__init__(name, first, last)
        self.weight = torch.tensor(weight, requires_grad=True)

    def infer(self, given: Mapping[int, Any]) -> Ragged:
        raise NotImplementedError


class Head(Toy):
    def forward(self, given: StageInput) -> StageOutput:
        assert given.batch is not None
        rows = given.batch["rows"][self.name]
        return StageOutput(rows * self.weight, [len(rows)])


class SeeingHead(Head):
    """All its rows are one image, in one row of patches; its grid and the one image go with it."""

    def forward(self, given: StageInput) -> StageOutput:
        seen = super().forward(given)
        return replace(seen, items=[1], sizes=torch.tensor([[1, 1, len(seen.tensor)]]))


class Join(Toy):
    """Packing: knows its branches by edge."""

    names: Mapping[int, str]

    def forward(self, given: StageInput) -> StageOutput:
        assert given.batch is not None
        branches = {self.names[edge]: sent.tensor for edge, sent in given.received.items()}
        for edge, sent in given.received.items():
            if sent.sizes is not None:
                checked_grids(sent, self.names[edge])
        words = branches.pop("text")
        packed = assemble(given.batch["input_ids"], SPECIAL, words, branches)
        return StageOutput(packed.hidden * self.weight)


class End(Toy):
    ends = True

    def forward(self, given: StageInput) -> StageOutput:
        (received,) = given.received.values()
        return StageOutput(received.tensor * self.weight)

    def loss(self, output: StageOutput, batch: dict[str, Any]) -> tuple[torch.Tensor, int]:
        return (output.tensor * batch["target"]).sum(), output.tensor.numel()


KINDS = (Head, Head, Head, Join, End)


def toy_plan(
    num_microbatches: int,
    absent: Sequence[tuple[str, int]] = (),
    frozen: Sequence[str] = (),
    three_axes: Sequence[str] = (),
) -> PipelinePlan:
    """Plan heads on ranks 0 to 2, packing on 3, the end on 4."""
    graph = stage_graph(TOPOLOGY, {**dict.fromkeys(HEADS, 1), "join": 2})
    schedule = plan_schedule(
        graph, num_microbatches, absent=absent, frozen=frozen, loading=range(5)
    )
    modalities = (*((head, head) for head in HEADS), ("join", "text"))
    ranks = tuple(range(n, n + 1) for n in range(5))
    axes = frozenset(three_axes)
    return PipelinePlan(schedule, ranks, modalities, axes, with_grids=axes)


def toy_stage(plan: PipelinePlan, index: int) -> Toy:
    """Return a stage; stage n multiplies by n + 2."""
    name = plan.graph.stages[index].module
    kind = SeeingHead if name in plan.three_axes else KINDS[index]
    stage = kind(name, index != 4, index != 3, float(index + 2))
    stage.names = {edge.index: edge.modality for edge in plan.graph.incoming[index]}
    return stage


def toy_batches(plan: PipelinePlan) -> Iterator[dict[str, Any]]:
    """Yield the batch of each micro-batch; a modality that is absent has no places."""
    for microbatch in range(plan.schedule.num_microbatches):
        row = [1, 9, 9, 8, 1, 8]
        absent = {name for name, other in plan.schedule.absent if other == microbatch}
        row = [1 if token in {SPECIAL[name] for name in absent} else token for token in row]
        ids = torch.tensor([row, [1] * 6])
        generator = torch.Generator().manual_seed(microbatch)
        rows = {
            "text": torch.rand(int((ids == 1).sum()), WIDTH, generator=generator),
            "audio": torch.rand(int((ids == 9).sum()), WIDTH, generator=generator),
            "vision": torch.rand(int((ids == 8).sum()), WIDTH, generator=generator),
        }
        target = torch.rand(6, 2, WIDTH, generator=generator)
        yield {"input_ids": ids, "rows": rows, "target": target}


def oracle_gradients(plan: PipelinePlan) -> list[float]:
    """Return the gradient of every stage's number, by the formula, in one process."""
    gradients = [0.0] * 5
    numbers = [float(index + 2) for index in range(5)]
    for batch in toy_batches(plan):
        target = batch["target"].transpose(0, 1).reshape(-1, WIDTH)
        flat = batch["input_ids"].flatten()
        whole = 0.0
        for index, (name, token) in enumerate((("text", 1), ("audio", 9), ("vision", 8))):
            part = float((batch["rows"][name] * target[flat == token]).sum())
            gradients[index] += part * numbers[3] * numbers[4]
            whole += part * numbers[index]
        gradients[3] += whole * numbers[4]
        gradients[4] += whole * numbers[3]
    return gradients
