"""The slots of tensors in messages, which separate the branches that meet at a stage.

Every tensor that reaches a stage in a micro-batch has a separate slot. The slots of the modalities
are consecutive: [0, S_text) text, then S_audio slots of audio, then S_vision slots of vision.
Several branches of one modality follow each other in the order of their edges. Each message begins
with a header, which has a slot, too.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from mimokit.planning.message_tags import HEADER_SLOTS, slots_between_modules
from mimokit.planning.schedule.graph import StageEdge, StageGraph

Modality = Literal["text", "audio", "vision"]
MODALITIES: tuple[Modality, ...] = ("text", "audio", "vision")

_WITHIN: dict[Modality, int] = {
    "text": 1,  # hidden states; those of a text head also as those of recordings
    "vision": 2,  # hidden states, items per sample
    "audio": 3,  # hidden states, items per sample, tokens per item
}
_AXES = 1  # grids of items, or position ids
_LENGTHS = 1  # of samples in a row


@dataclass(frozen=True)
class StageSlots:
    """The slots of all tensors that reach one stage.

    Attributes:
        counts: modality -> its slots (S_text, S_audio, S_vision); 0 if none of it arrives.
    """

    counts: Mapping[Modality, int]

    @property
    def offsets(self) -> dict[Modality, int]:
        """Modality -> its first slot."""
        counts = [self.counts[modality] for modality in MODALITIES]
        return {modality: sum(counts[:index]) for index, modality in enumerate(MODALITIES)}

    @property
    def total(self) -> int:
        """The number of slots."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class SlotPlan:
    """The slots of a graph of stages.

    Attributes:
        edges: by edge index: the slots of its messages, the header first; the same in both
            directions.
    """

    stages: tuple[StageSlots, ...]
    edges: tuple[range, ...]


def plan_slots(
    graph: StageGraph,
    modalities: Mapping[str, Modality],
    three_axes: Collection[str] = (),
    text_heads: Collection[str] = (),
    in_row: Collection[str] = (),
    with_grids: Collection[str] = (),
) -> SlotPlan:
    """Return the slots of every edge.

    Args:
        modalities: module -> its modality; the language model is text.
        three_axes: modules whose stages send integers of three axes to the next: encoders of images
            that differ in size and adapters (grids), a language model with such positions.
        text_heads: modules that read words for the language model: their texts differ in length.
        in_row: modules whose stages send the lengths of samples without padding.
        with_grids: modules that send the grids of items with their rows.

    Raises:
        KeyError: a module has no modality.
    """
    edges: list[range] = [range(0)] * len(graph.edges)
    stages = []
    for incoming in graph.incoming:
        counts: dict[Modality, int] = dict.fromkeys(MODALITIES, 0)
        begin = 0
        for modality in MODALITIES:
            for edge in incoming:
                if modalities[edge.modality] != modality:
                    continue
                name, kind = edge.modality, "audio" if edge.modality in text_heads else modality
                size = slots_between_modules(name in with_grids)
                if _is_within(graph, edge):
                    size = HEADER_SLOTS + _WITHIN[kind]
                    size += _AXES * (name in three_axes) + _LENGTHS * (name in in_row)
                edges[edge.index] = range(begin, begin + size)
                counts[modality] += size
                begin += size
        stages.append(StageSlots(counts))
    return SlotPlan(tuple(stages), tuple(edges))


def _is_within(graph: StageGraph, edge: StageEdge) -> bool:
    return graph.stages[edge.source].module == graph.stages[edge.destination].module
