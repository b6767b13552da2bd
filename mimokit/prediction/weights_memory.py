"""Bytes per rank of the model of a weights directory, with the real shapes of its shards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mimokit.architecture.huggingface.functions import functions_of
from mimokit.architecture.layer_work.saved import saved_tensors
from mimokit.architecture.modules import LanguageModel, Model, MultimodalModel
from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.architecture.parameters_on_rank import Module, net_of
from mimokit.architecture.transformer import Transformer
from mimokit.config.errors import ConfigError
from mimokit.planning.weights import WeightPlanner
from mimokit.planning.weights.directory import FLOATING, WeightDirectory, refused
from mimokit.planning.weights.running import check_language, check_room_for_image, part_planners
from mimokit.planning.weights.types import DTYPE_BYTES, RankWeights
from mimokit.prediction.memory.stage import stage_memory
from mimokit.prediction.memory.states import GRADIENT, OPTIMIZER, WEIGHT
from mimokit.prediction.workload import Workload, branches_of, language_of
from mimokit.units import counted

PARTS = ("weights", "gradients", "optimizer", "activations", "kv_cache")

LANGUAGE = "language_module"
"""The language model in a layout of weights."""

_OUTSIDE = ("activations", "logits", "buffers")
"""Of a stage, what is not a state of the optimizer."""

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
        parts: part -> bytes of all modules; 0 for what does not exist.
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
    inference: bool
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
        fields = ("model_type", "inference", "batch", "seq_length", "scope")
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
    inference: bool = False,
    batch: int = 1,
    seq_length: int | None = None,
    dtype: str | None = None,
) -> CheckpointMemory:
    """Return the bytes of the fullest rank at each tensor parallel size, which all modules have.

    Training is that of `mimokit.prediction.memory`: 16-bit weights, fp32 gradients, Adam on one
    replica, no recompute. For inference, weights and cache have the dtype of loading, and the
    activations are those of one layer for the whole prompt, or of the tower where they are more. A
    LLaVA has one image in every sequence, and its tower the layers that its features need.

    Args:
        sizes: None: those of 1, 2, 4 and 8 that can cut the model.
        inference: generate, do not train.
        seq_length: tokens of each, for a cache those that will be generated included; None: 4,096,
            or the model's positions if fewer.
        dtype: torch's name of the dtype of loading, for inference; None: as in the files.

    Raises:
        ConfigError: a size cannot cut the model, a number is below 1, there are more tokens than
            positions, or an image leaves no room.
    """
    if batch < 1:
        raise refused("Options", "batch", batch, f"batch is {batch}; it must be at least 1")
    seq_length = tokens_of(weights, seq_length)
    rejected: dict[int, str] = {}
    if sizes is None:
        found = {size: obstacle(weights, size) for size in USUAL_SIZES}
        rejected = {size: why for size, why in found.items() if why}
        sizes = [size for size in USUAL_SIZES if size not in rejected]
    if not sizes:
        raise refused("Options", "tp", None, "no tensor parallel size is given; write 1,2,4,8")
    model, scope = computed_model(weights, seq_length)
    modules = modules_of(model)
    ranks = []
    for size in sorted(set(sizes)):
        planners = part_planners(weights, size, dtype, trains=not inference)
        shards = [
            _Shard(module, planner, size, batch, Workload(seq_length, 1).length_of(module))
            for module, planner in zip(modules, planners, strict=True)
        ]
        parts = _inference(shards, dtype) if inference else _training(shards)
        parameters = {shard.name: shard.parameters for shard in shards}
        every = {name: float(parts.get(name, 0)) for name in PARTS}
        ranks.append(RankMemory(size, every, parameters))
    kind = str(weights.config.get("model_type"))
    return CheckpointMemory(kind, inference, batch, seq_length, tuple(ranks), scope, rejected)


def tokens_of(weights: WeightDirectory, seq_length: int | None) -> int:
    """Return the tokens of a sequence: those asked for, or 4,096 as far as positions allow.

    Raises:
        ConfigError: they are below 1, or more than the model has positions.
    """
    positions = functions_of(weights.config).positions
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


def modules_of(model: Model) -> tuple[Module, ...]:
    """Return the language model and what runs in front of it."""
    return (language_of(model), *branches_of(model))


def computed_model(weights: WeightDirectory, seq_length: int) -> tuple[Model, str]:
    """Return what a run computes of a weights directory, and what figures are for.

    Raises:
        ConfigError: it has no language model, or an image leaves no room for text.
    """
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


@dataclass(frozen=True)
class _Shard:
    """A module on its fullest rank."""

    module: Module
    planner: WeightPlanner
    tensor_parallel: int
    batch: int
    length: int

    @property
    def name(self) -> str:
        """What the module is called in a layout."""
        return LANGUAGE if isinstance(self.module, LanguageModel) else self.module.name

    @property
    def ranks(self) -> list[RankWeights]:
        """What each rank holds."""
        return [self.planner.rank(rank) for rank in range(self.tensor_parallel)]

    @property
    def parameters(self) -> int:
        """On the rank that has most of them."""
        return max(
            sum(math.prod(shard.shape) for shard in rank.parameters.values()) for rank in self.ranks
        )


def _training(shards: Sequence[_Shard]) -> dict[str, float]:
    parameters = sum(shard.parameters for shard in shards)
    kept = 0.0
    for shard in shards:
        sizes = ParallelSizes(tensor=shard.tensor_parallel, micro_batch=shard.batch)
        stage = stage_memory(shard.module, sizes, shard.length, 1, 0)
        kept += sum(float(np.asarray(stage[name])) for name in _OUTSIDE if name in stage)
    return {
        "weights": WEIGHT * parameters,
        "gradients": GRADIENT * parameters,
        "optimizer": OPTIMIZER * parameters,
        "activations": kept,
    }


def _inference(shards: Sequence[_Shard], dtype: str | None) -> dict[str, float]:
    language, entries = shards[0], []
    for shard in shards:
        first = next(iter(shard.planner.family.found.tensors))
        stored = shard.planner.stored.tensors[first].dtype
        entries.append(DTYPE_BYTES[dtype or FLOATING[stored]])
    size, batch, seq = language.tensor_parallel, language.batch, language.length
    activations = [
        entry * _layer_entries(net_of(shard.module), size) * batch * shard.length
        for shard, entry in zip(shards, entries, strict=True)
    ]
    activations[0] += 4 * batch * (language.ranks[0].vocab or (0, 0))[1]
    return {
        "weights": sum(max(rank.bytes for rank in shard.ranks) for shard in shards),
        "activations": max(activations),
        "kv_cache": cache_bytes(net_of(language.module), size, batch, seq, entries[0]),
    }


def cache_bytes(net: Transformer, tensor_parallel: int, batch: int, seq: int, entry: int) -> int:
    """Return the bytes of a rank's key and value cache.

    Below one group a rank they do not shrink further: every rank holds at least one.
    """
    groups = max(net.kv_heads // tensor_parallel, 1)
    return 2 * net.layers * groups * net.head_dim * seq * batch * entry


def _layer_entries(net: Transformer, size: int) -> float:
    """Return the numbers per token that a layer holds at once: residual, input, the widest part."""
    widths = {"attention": 0.0, "feed-forward": 0.0}
    for saved in saved_tensors(net, None, ParallelSizes(tensor=size)):
        if saved.part in widths:
            widths[saved.part] += float(saved.numbers)
    return 2 * net.hidden + max(widths.values())
