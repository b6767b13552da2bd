"""Proves that what trains from a directory of weights computes the model."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mimokit.architecture import longest_sequence
from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.extras.generation.check.inputs import CheckInput, check_input, config_of_check
from mimokit.extras.generation.check.report import CheckReport, LayerDifference
from mimokit.planning import plan_layout
from mimokit.planning.weights import (
    DTYPE_BYTES,
    WeightPlanner,
    computed_planner,
    refused,
    stored_weights,
)
from mimokit.progress import shown
from mimokit.units import counted

if TYPE_CHECKING:
    from torch import Tensor

    from mimokit.extras.generation.check.on_rank import ChangeShard
    from mimokit.extras.generation.check.parts import Parts

TOLERANCES: Mapping[str, float] = {
    "float64": 1e-5, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2
}  # fmt: skip
"""Dtype of the weights -> largest difference that passes, relative to the largest entry."""

ALIKE = 0.999
"""Of the largest difference: a rank that is as far has the same sum."""


def furthest_parts(ranks: Sequence[Parts], oracle: Parts) -> tuple[LayerDifference, ...]:
    """Return the parts in the order of the network, each with the ranks that are furthest."""
    return tuple(
        _furthest(
            name, [_relative(parts[name], oracle[name], rank) for rank, parts in enumerate(ranks)]
        )
        for name in ranks[0]
    )


def _relative(part: Tensor, wanted: Tensor, rank: int) -> float:
    """Return the largest difference, relative to the oracle's largest entry; inf for a NaN."""
    scale = float(wanted.abs().max())
    if part.shape != wanted.shape:  # a shard of the vocabulary, the last one with padding
        wanted = wanted[..., rank * part.shape[-1] :][..., : part.shape[-1]]
        part = part[..., : wanted.shape[-1]]
    largest = float((part - wanted).abs().max()) if part.numel() else 0.0
    return largest / (scale or 1.0)


def _furthest(name: str, relatives: Sequence[float]) -> LayerDifference:
    distances = [math.inf if math.isnan(relative) else relative for relative in relatives]
    largest = max(distances)
    ranks = [rank for rank, distance in enumerate(distances) if distance >= ALIKE * largest]
    return LayerDifference(name, relatives[ranks[0]], tuple(ranks))


USUAL_LENGTH = 16
"""Tokens of a row if none are asked for."""


@dataclass(frozen=True)
class WeightCheck:
    """What a check of weights computes; it is rejected before engines start."""

    planner: WeightPlanner
    config: ExperimentConfig
    inputs: CheckInput
    dtype: str

    @classmethod
    def of(
        cls,
        directory: str | os.PathLike[str],
        tensor_parallel: int = 1,
        dtype: str | None = None,
        batch: int = 2,
        length: int | None = None,
        seed: int = 0,
    ) -> WeightCheck:
        """Return the check that is asked for, reading headers alone; raises as `check_weights`."""
        planner = computed_planner(stored_weights(directory), tensor_parallel, dtype=dtype)
        stored = planner.stored
        if stored.is_multimodal and not stored.is_llava:
            kind = stored.config["model_type"]
            what = f"its model_type is {kind}, whose tower no check compares; verify an experiment"
            what += " whose modules start from it"
            raise refused(stored.directory, "model_type", kind, what)
        positions = longest_sequence(stored.config)
        if length is None:
            length = min(USUAL_LENGTH, positions or USUAL_LENGTH)
        for name, value in (("batch", batch), ("length", length)):
            if value < 1:
                raise refused("Options", name, value, f"{name} is {value}; it must be at least 1")
        if 0 < positions < length:
            what = f"length is {length:,}, and the model has {counted(positions, 'position')}; "
            raise refused("Options", "length", length, f"{what}give at most so many")
        config = config_of_check(planner, tensor_parallel, length)
        inputs = check_input(planner, batch, length, seed)
        return cls(planner, config, inputs, _dtype(planner, dtype))

    def run(self, cluster: EngineCluster, change: ChangeShard | None = None) -> CheckReport:
        """Return how far the network on engines is from the oracle; see `check_weights`."""
        from mimokit.extras.generation.check.hugging_face import can_load, hugging_face

        directory, config = self.planner.stored.directory, self.config
        ranks = plan_layout(config).world_size
        name = "transformers" if can_load(directory) else "one process"
        with shown(f"Computing with {name}", total=2) as bar:
            if can_load(directory):
                oracle = hugging_face(directory, self.inputs, self.dtype)
            else:
                alone = config_of_check(self.planner, 1, config.data.seq_length)
                (oracle,) = self._parts(cluster, alone)
            bar.update(1, f"Computing on {counted(ranks, 'rank')}")
            layers = furthest_parts(self._parts(cluster, config, change), oracle)
        left_out, tolerance = self.planner.family.left_out, TOLERANCES[self.dtype]
        return CheckReport(f"TP {ranks}", name, self.dtype, tolerance, layers, left_out)

    def _parts(
        self, cluster: EngineCluster, config: ExperimentConfig, change: ChangeShard | None = None
    ) -> list[Parts]:
        from mimokit.extras.generation.check.on_rank import parts_on_rank

        plan = plan_layout(config)
        return cluster.run(
            parts_on_rank, plan, config, self.inputs, self.dtype, change,
            world_size=plan.world_size,
        )  # fmt: skip


def _dtype(planner: WeightPlanner, asked: str | None) -> str:
    if asked is not None:
        return asked
    dtypes = {parameter.dtype for parameter in planner.rank(0).parameters.values()}
    return min(dtypes, key=lambda dtype: (DTYPE_BYTES[dtype], dtype))


def check_weights(
    cluster: EngineCluster,
    directory: str | os.PathLike[str],
    *,
    tensor_parallel: int = 1,
    dtype: str | None = None,
    batch: int = 2,
    length: int | None = None,
    seed: int = 0,
    change: ChangeShard | None = None,
) -> CheckReport:
    """Compare the forward pass of what trains from weights with Hugging Face's, part by part.

    Where `transformers` is not installed, or the directory is a converted one, the oracle is one
    process that starts from the same files.

    Args:
        cluster: with at least tensor_parallel engines.
        directory: of a language model, a vision tower, or a LLaVA: its language model is checked
            on tokens, its tower up to the layer whose output is taken and its projector on images.
        dtype: torch's name of that of the weights; None: as in the files. Both compute in a wider
            one, which the report states: rounding in bf16 looks like a wrong shard.
        length: tokens of a row; None: 16, or the model's positions if fewer.
        change: is called on each rank with its number and its parameters once they are loaded, and
            may change them in place: so a check shows that it finds a wrong shard.

    Raises:
        ConfigError: as `plan_weights`, or the network has what cannot run.
        ClusterError: the cluster has too few engines, or a rank fails.
    """
    return WeightCheck.of(directory, tensor_parallel, dtype, batch, length, seed).run(
        cluster, change
    )
