"""What a rank of mimokit's engine stores of every module: exact numbers, all of them fp32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mimokit.architecture import EncoderBranch, LanguageModel, VisionEncoder
from mimokit.architecture.from_config import model_of_config
from mimokit.architecture.layer_split import stage_layers
from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.architecture.parameters_on_rank import Module, net_of, rank_parameters
from mimokit.config import ExperimentConfig
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.local_cpu.operation_counts import NUMBER_BYTES

MOMENTS = 2
"""Adam keeps two numbers per parameter."""

TENSORS_OF_A_LAYER = 12
"""Four matrices and two norms, each with a bias."""


@dataclass(frozen=True)
class Stored:
    """The part of a module on one rank."""

    tensors: int
    numbers: int

    def __add__(self, other: Stored) -> Stored:
        return Stored(self.tensors + other.tensors, self.numbers + other.numbers)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights; gradients take as many."""
        return NUMBER_BYTES * self.numbers

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of Adam's moments."""
        return MOMENTS * self.weight_bytes


def stored_on_rank(config: ExperimentConfig, plan: LayoutPlan, rank: int) -> dict[str, Stored]:
    """Return module -> what a rank stores of it; modules without the rank are left out."""
    modules = built_modules(config)
    found = {}
    for name, ranks in plan.modules.items():
        if rank in ranks.ranks:
            sizes, stage = plan.executions[name].sizes, ranks.coordinates(rank)["pp"]
            numbers = rank_parameters(modules[name], sizes, stage).total
            found[name] = Stored(_tensors(modules[name], sizes, stage), round(float(numbers)))
    return found


def built_modules(config: ExperimentConfig) -> Mapping[str, Module]:
    """Return the modules of a config as the engine builds them: no vocabulary is padded."""
    model = model_of_config(config.model)
    language = replace(model.language, vocab_multiple=1)
    return {language.name: language, **{branch.name: branch for branch in model.branches}}


def _tensors(module: Module, sizes: ParallelSizes, stage: int) -> int:
    first, last = stage == 0, stage == sizes.pipeline - 1
    layers = stage_layers(net_of(module).layers, net_of(module).layers, sizes, stage)
    if isinstance(module, LanguageModel):
        ends = _language_ends(module, first, last)
    else:
        ends = _vision_ends(module, first, last)
    return TENSORS_OF_A_LAYER * int(layers.total) + ends


def _language_ends(module: LanguageModel, first: bool, last: bool) -> int:
    """Return the tensors of embedding, last norm and output layer, which a tied one shares."""
    shared = module.tied and first
    return first + last * (2 + (not shared))


def _vision_ends(module: EncoderBranch, first: bool, last: bool) -> int:
    """Return the tensors of patches, positions and extra tokens; last norm and projector."""
    encoder = module.encoder
    assert isinstance(encoder, VisionEncoder)
    in_front = 3 + encoder.class_token + (encoder.registers > 0)
    return first * in_front + last * 6
