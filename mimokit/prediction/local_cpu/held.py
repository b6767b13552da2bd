"""What a rank of mimokit's engine holds of every module: exact numbers, all of them fp32."""

from __future__ import annotations

from dataclasses import dataclass

from mimokit.architecture.tokens import image_geometry
from mimokit.config import ExperimentConfig, ModuleArchitecture
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.local_cpu.operation_counts import NUMBER_BYTES

MOMENTS = 2
"""Adam keeps two numbers per parameter."""


@dataclass(frozen=True)
class Holding:
    """The part of a module on one rank.

    Attributes:
        tensors: parameters, as tensors.
        numbers: numbers in them.
    """

    tensors: int
    numbers: int

    def __add__(self, other: Holding) -> Holding:
        return Holding(self.tensors + other.tensors, self.numbers + other.numbers)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights; gradients take as many."""
        return NUMBER_BYTES * self.numbers

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of Adam's moments."""
        return MOMENTS * self.weight_bytes


def rank_holdings(config: ExperimentConfig, plan: LayoutPlan, rank: int) -> dict[str, Holding]:
    """Return module -> what a rank holds of it; modules that it takes no part in are left out."""
    model = config.model
    language = model.get_architecture(model.llm_module_name)
    found = {}
    for name, rank_map in plan.modules.items():
        if rank not in rank_map.ranks:
            continue
        own = model.get_architecture(name)
        place, stages = rank_map.coordinates(rank)["pp"], rank_map.pipeline_parallel
        tensor = rank_map.tensor_parallel
        layer = layer_holding(own, tensor)
        layers = own.num_layers // stages
        held = Holding(layer.tensors * layers, layer.numbers * layers)
        first, last = place == 0, place == stages - 1
        if name == model.llm_module_name:
            held += language_end_holding(own, tensor, first, last)
        else:
            held += vision_end_holding(own, language, tensor, first, last)
        found[name] = held
    return found


def layer_holding(own: ModuleArchitecture, tensor: int) -> Holding:
    """Return one layer: attention and feed-forward cut, output biases and norms whole."""
    hidden, inside = own.hidden_size, own.feed_forward_size
    cut = 4 * hidden**2 + 2 * hidden * inside + 3 * hidden + inside
    return Holding(12, cut // tensor + 6 * hidden)


def language_end_holding(own: ModuleArchitecture, tensor: int, first: bool, last: bool) -> Holding:
    """Return embedding, last norm and output layer; a tied one is the embedding where both are."""
    table = own.vocab_size * own.hidden_size // tensor
    held = Holding(0, 0)
    if first:
        held += Holding(1, table)
    if last:
        held += Holding(2, 2 * own.hidden_size)
    if last and not (own.tied_embeddings and first):
        held += Holding(1, table)
    return held


def vision_end_holding(
    own: ModuleArchitecture, language: ModuleArchitecture, tensor: int, first: bool, last: bool
) -> Holding:
    """Return patch and position embedding; last norm and projector."""
    shape, hidden = image_geometry(own), own.hidden_size
    held = Holding(0, 0)
    if first:
        pixels = shape.num_channels * shape.patch_size**2
        held += Holding(3, (pixels + 1 + shape.patches + own.class_token) * hidden)
        held += Holding(own.class_token, own.class_token * hidden)
        held += Holding(int(own.num_registers > 0), own.num_registers * hidden)
    if last:
        features, wide = hidden * own.merge_size**2, language.feed_forward_size
        cut = (features + 1 + language.hidden_size) * wide
        held += Holding(6, 2 * hidden + cut // tensor + language.hidden_size)
    return held
