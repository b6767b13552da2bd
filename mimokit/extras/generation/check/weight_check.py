"""Proves that a layout of a weights directory computes the model; the report of what was found."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mimokit.architecture.huggingface import functions_of
from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.extras.generation.check.inputs import (
    ARITHMETIC,
    OUTPUT,
    CheckInput,
    check_input,
    checked_config,
)
from mimokit.planning import plan_layout
from mimokit.planning.weights import (
    DTYPE_BYTES,
    WeightPlanner,
    computed_planner,
    refused,
    stored_weights,
)
from mimokit.progress import shown
from mimokit.tables import Report, Section
from mimokit.units import counted, span_text

if TYPE_CHECKING:
    from torch import Tensor

    from mimokit.extras.generation.check.on_rank import ChangeShard
    from mimokit.extras.generation.check.parts import Parts

TOLERANCES: Mapping[str, float] = {
    "float64": 1e-5, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2
}  # fmt: skip
"""Dtype of the weights -> largest difference that passes, relative to the largest entry."""

ROUNDING = 1e-4
"""Relative difference that the rounding of `ARITHMETIC` does not explain, whatever the dtype of the
weights tolerates."""


@dataclass(frozen=True)
class LayerDifference:
    """How far a part of the network is from the oracle's.

    Attributes:
        name: "embedding", "decoder.layers.N", "decoder.final_layernorm" or "output_layer"; of a
            LLaVA with what is in front of its parameters' names, such as "language_model.".
        max_difference: largest over all ranks, relative to the oracle's largest entry.
        ranks: the ranks that are as far from it. Ranks that add up what they have computed all
            have what a wrong shard of one of them makes of the sum.
    """

    name: str
    max_difference: float
    ranks: tuple[int, ...]

    @property
    def where(self) -> str:
        """Return the ranks in words: "on rank 2", "on ranks 0–3, which add up their parts"."""
        if len(self.ranks) == 1:
            return f"on rank {self.ranks[0]}"
        return f"on ranks {span_text(self.ranks)}, which add up their parts"


@dataclass(frozen=True, repr=False)
class CheckReport(Report):
    """A layout's forward pass against the oracle's; `layers` are in the order of the network.

    Attributes:
        tolerance: largest relative difference that passes.
        left_out: layers of the weights that predict further tokens, which no check computes.
    """

    layout: str
    oracle: str
    dtype: str
    tolerance: float
    layers: tuple[LayerDifference, ...]
    left_out: int = 0

    @property
    def max_logit_difference(self) -> float:
        """Largest difference of a logit (of a tower: of its output), relative to the largest."""
        return next(layer.max_difference for layer in self.layers if layer.name.endswith(OUTPUT))

    @property
    def first_wrong(self) -> LayerDifference | None:
        """The part that has the wrong shard, if the check has failed; else None."""
        return None if self.passed else self.first_beyond_rounding

    @property
    def first_beyond_rounding(self) -> LayerDifference | None:
        """The first part that differs by more than rounding explains, tolerated or not; or None."""
        least = min(self.tolerance, ROUNDING)
        return next((layer for layer in self.layers if not layer.max_difference <= least), None)

    @property
    def passed(self) -> bool:
        """Whether every part is at or under the tolerance (a NaN is not)."""
        return all(layer.max_difference <= self.tolerance for layer in self.layers)

    @property
    def verdict(self) -> str:
        """One sentence, and one more if a tolerated difference is not rounding."""
        wrong = self.first_wrong
        if wrong is None:
            return (
                f"{self.layout} computes what {self.oracle} computes: the largest difference is "
                f"{max(layer.max_difference for layer in self.layers):.1e} of the largest entry "
                f"({self._terms}).{self._doubt}{self._scope}"
            )
        return (
            f"{self.layout} does NOT compute what {self.oracle} computes: {wrong.name} is the "
            f"first part that differs, by {wrong.max_difference:.1e} of its largest entry "
            f"{wrong.where} ({self._terms})."
        )

    @property
    def _doubt(self) -> str:
        part = self.first_beyond_rounding
        if part is None:
            return ""
        return (
            f" Rounding in {self.arithmetic} does not explain the {part.max_difference:.1e} of "
            f"{part.name} {part.where}, which are tolerated."
        )

    @property
    def _scope(self) -> str:
        if not self.left_out:
            return ""
        return f" Not computed: {counted(self.left_out, 'layer')} that predict further tokens."

    @property
    def arithmetic(self) -> str:
        """The dtype in which both compute; see `ARITHMETIC`."""
        return ARITHMETIC[self.dtype]

    @property
    def _terms(self) -> str:
        return f"tolerance {self.tolerance:.0e}, {self.dtype} computed in {self.arithmetic}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data; null for what is not a number."""
        beyond = self.first_beyond_rounding
        return {
            "max_logit_difference": _finite(self.max_logit_difference),
            "tolerance": self.tolerance,
            "oracle": self.oracle,
            "dtype": self.dtype,
            "arithmetic": self.arithmetic,
            "left_out": self.left_out,
            "layers": [
                {
                    "name": layer.name,
                    "max_difference": _finite(layer.max_difference),
                    "rank": layer.ranks[0],
                    "ranks": list(layer.ranks),
                    "passed": layer.max_difference <= self.tolerance,
                }
                for layer in self.layers
            ],
            "first_beyond_rounding": beyond and beyond.name,
            "passed": self.passed,
        }

    def section(self) -> Section:
        """Return a row per part, and below them the verdict."""
        heading = f"{self.layout} against {self.oracle}"
        return Section(heading, COLUMNS, self._rows(), (self.verdict,))

    def _rows(self) -> list[list[str]]:
        return [
            [layer.name, f"{layer.max_difference:.1e}", span_text(layer.ranks),
             "yes" if layer.max_difference <= self.tolerance else "NO"]
            for layer in self.layers
        ]  # fmt: skip


ALIKE = 0.999
"""Of the largest difference: a rank that is as far has the same sum."""
COLUMNS = ("part", "largest difference", "on ranks", "passed")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def layers_of(ranks: Sequence[Parts], oracle: Parts) -> tuple[LayerDifference, ...]:
    """Return the parts in the order of the network, each with the ranks that are furthest.

    Args:
        ranks: what each rank has made, the logits of its rows of the vocabulary alone.
    """
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
        positions = functions_of(stored.config).positions
        if length is None:
            length = min(USUAL_LENGTH, positions or USUAL_LENGTH)
        for name, value in (("batch", batch), ("length", length)):
            if value < 1:
                raise refused("Options", name, value, f"{name} is {value}; it must be at least 1")
        if 0 < positions < length:
            what = f"length is {length:,}, and the model has {counted(positions, 'position')}; "
            raise refused("Options", "length", length, f"{what}give at most so many")
        config = checked_config(planner, tensor_parallel, length)
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
                alone = checked_config(self.planner, 1, config.data.seq_length)
                (oracle,) = self._parts(cluster, alone)
            bar.update(1, f"Computing on {counted(ranks, 'rank')}")
            layers = layers_of(self._parts(cluster, config, change), oracle)
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
    """Return the dtype of loading: the one asked for, else the narrowest of the files."""
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
