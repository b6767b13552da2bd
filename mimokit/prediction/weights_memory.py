"""Bytes per rank of the model of a weights directory, at sizes that can cut its tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mimokit.architecture.huggingface.functions import longest_sequence
from mimokit.architecture.modules import LanguageModel, Model, MultimodalModel
from mimokit.architecture.rank_parameters import rank_parameters
from mimokit.config.errors import ConfigError
from mimokit.config.sizes import ParallelSizes
from mimokit.planning.weights import WeightPlanner
from mimokit.planning.weights.directory import WeightDirectory, refused
from mimokit.planning.weights.generation_planners import check_language, check_room_for_image
from mimokit.prediction.memory.stage import stage_memory
from mimokit.prediction.workload import Workload, branches_of, modules_of
from mimokit.units import counted

PARTS = ("weights", "gradients", "optimizer", "activations")

LANGUAGE = "language_module"
"""The language model in a layout of weights."""

TOGETHER = (
    "The language model, the tower and its projector have the same tensor parallel size, and every "
    "sample has one image of {tokens:,} tokens."
)
"""What figures of a LLaVA are for."""

DESCRIBED = "No weights lie there: shapes and dtype are those that config.json describes."
"""What figures of a config.json alone are for."""

USUAL_SIZES = (1, 2, 4, 8)
"""Tensor parallel sizes that are asked for if none is."""

MOST_TOKENS = 4096
"""Tokens of a sequence if none are asked for, and the model has as many positions."""


@dataclass(frozen=True)
class RankMemory:
    """Memory of the fullest rank at one size.

    Attributes:
        parts: part -> bytes of all modules; logits and buffers are among the activations.
        parameters: module -> how many.
    """

    tensor_parallel: int
    parts: Mapping[str, float]
    parameters: Mapping[str, int]

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class CheckpointMemory:
    """Memory of the model of a weights directory.

    Attributes:
        scope: what the figures are for: of a LLaVA which modules, without weights that config.json
            describes the tensors; else empty.
        rejected: usual sizes that cannot cut the model -> why; none where sizes were asked for.
    """

    model_type: str
    batch: int
    seq_length: int
    ranks: tuple[RankMemory, ...]
    scope: str = ""
    rejected: Mapping[int, str] = field(default_factory=dict)

    def saved(self, number: int) -> float | None:
        """Return the share that a size saves of the bytes of the one before; None for the first."""
        if not number:
            return None
        return 1 - self.ranks[number].total / self.ranks[number - 1].total

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        fields = ("model_type", "batch", "seq_length", "scope")
        return {
            **{name: getattr(self, name) for name in fields},
            "sizes": {
                str(rank.tensor_parallel): {
                    **rank.parts, "total": rank.total, "saved": self.saved(number),
                    "parameters": dict(rank.parameters),
                }
                for number, rank in enumerate(self.ranks)
            },
            "rejected": {str(size): why for size, why in self.rejected.items()},
        }  # fmt: skip


def checkpoint_memory(
    weights: WeightDirectory,
    sizes: Sequence[int] | None = None,
    *,
    batch: int = 1,
    seq_length: int | None = None,
) -> CheckpointMemory:
    """Return the bytes of the fullest rank at each tensor parallel size, which all modules have.

    They are those of `mimokit.prediction.memory` for training: 16-bit weights, fp32 gradients, Adam
    on one replica, no recompute. A LLaVA has one image in every sequence, and its tower the layers
    that its features need.

    Args:
        sizes: None: those of 1, 2, 4 and 8 that can cut the model.
        seq_length: tokens of each; None: 4,096, or the model's positions if fewer.

    Raises:
        ConfigError: a size cannot cut the model, a number is below 1, there are more tokens than
            positions, or an image leaves no room.
    """
    if batch < 1:
        raise refused("Options", "batch", batch, f"batch is {batch}; it must be at least 1")
    seq_length = tokens_of(weights, seq_length)
    rejected: dict[int, str] = {}
    if sizes is None:
        obstacles = {size: obstacle(weights, size) for size in USUAL_SIZES}
        rejected = {size: why for size, why in obstacles.items() if why}
        sizes = [size for size in USUAL_SIZES if size not in rejected]
    if not sizes:
        raise refused("Options", "tp", None, "no tensor parallel size is given; write 1,2,4,8")
    model, scope = computed_model(weights, seq_length)
    ranks = []
    for size in sorted(set(sizes)):
        WeightPlanner(weights, size)  # rejects a size that cannot cut the model
        ranks.append(_of_rank(model, ParallelSizes(tensor=size, micro_batch=batch), seq_length))
    kind = str(weights.config.get("model_type"))
    return CheckpointMemory(kind, batch, seq_length, tuple(ranks), scope, rejected)


def _of_rank(model: Model, sizes: ParallelSizes, seq_length: int) -> RankMemory:
    parts, parameters, workload = dict.fromkeys(PARTS, 0.0), {}, Workload(seq_length, 1)
    for module in reversed(modules_of(model)):  # the language model first
        name = module.name
        if isinstance(module, LanguageModel):
            # Weights are padded for the ranks alone.
            module, name = replace(module, vocab_multiple=1), LANGUAGE
        stage = stage_memory(module, sizes, workload.input_of(module).length, 1, 0)
        for part, count in stage.items():
            parts[part if part in parts else "activations"] += float(np.asarray(count))
        parameters[name] = int(rank_parameters(module, sizes, 0).total)
    return RankMemory(int(sizes.tensor), parts, parameters)


def tokens_of(weights: WeightDirectory, seq_length: int | None) -> int:
    """Return the tokens of a sequence: those asked for, or 4,096 as far as positions allow."""
    positions = longest_sequence(weights.config)
    if seq_length is None:
        return min(MOST_TOKENS, positions or MOST_TOKENS)
    if seq_length < 1:
        what = f"seq_length is {seq_length}; it must be at least 1"
        raise refused("Options", "seq_length", seq_length, what)
    if 0 < positions < seq_length:
        what = f"seq_length is {seq_length:,}, and the model has {counted(positions, 'position')}; "
        raise refused("Options", "seq_length", seq_length, f"{what}give at most so many")
    return seq_length


def obstacle(weights: WeightDirectory, size: int) -> str | None:
    """Return why a tensor parallel size cannot cut a model; None if it can."""
    try:
        WeightPlanner(weights, size)
    except ConfigError as error:
        return str(error.problems[0].sentence).removeprefix("Layout: ").rstrip(".")
    return None


def computed_model(weights: WeightDirectory, seq_length: int) -> tuple[Model, str]:
    """Return what a run computes of a weights directory, and what figures are for."""
    model = WeightPlanner(weights).family.model
    said = [DESCRIBED] if weights.has_no_files else []
    check_language(weights)
    if isinstance(model, MultimodalModel):
        model = model.computed
    for branch in branches_of(model):
        tokens = branch.encoder.tokens()
        check_room_for_image(weights, tokens, seq_length)
        said.append(TOGETHER.format(tokens=tokens))
    return model, " ".join(said)
