"""`ModuleExecution`: how the ranks of a module compute it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from mimokit.axes import Axis, Choice
from mimokit.config import ModuleArchitecture
from mimokit.config.runtime import PRECISION_OF_RUNS
from mimokit.config.sizes import ParallelSizes

Dtype: TypeAlias = Literal["fp32", "bf16", "fp16"]

ALONE = ParallelSizes(sequence_parallel=False, distributed_optimizer=False)
"""One rank, which has all of a module and of its optimizer."""

NUMBER_BYTES: Mapping[Dtype, int] = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class ModuleExecution:
    """How the ranks of one module compute it; which ranks they are, its `ModuleRanks` says.

    The defaults are those of a module on one rank, trained in fp32.

    Attributes:
        sizes: ranks that share it, and how its states are stored. Sequence parallelism needs tensor
            parallel ranks, and several optimizer instances states that are sharded.
        token_dispatcher: how tokens reach the experts of other ranks.
        samples_in_row: its samples are computed in one row, without padding.
        precision: of matrix products.
        weights: dtype of the weights that layers compute with, and of activations.
        gradients: dtype in which gradients are accumulated and reduced.
        overlap_reduction: gradients are reduced during the last backward pass of a step.
        frozen_parts: encoder, projector: what is not trained; both of a module that is frozen.
        learning_rate: before warm-up and decay, which are those of the run. None: that of the run.
        weight_decay: None: that of the run.
    """

    sizes: ParallelSizes = ALONE
    token_dispatcher: str = "alltoall"
    samples_in_row: bool = False
    precision: str = PRECISION_OF_RUNS
    weights: Dtype = "fp32"
    gradients: Dtype = "fp32"
    overlap_reduction: bool = False
    frozen_parts: frozenset[str] = frozenset()
    learning_rate: float | None = None
    weight_decay: float | None = None

    def size(self, axis: Axis | Choice) -> int:
        """Return the size along an axis, or the value of a choice."""
        return int(self.sizes.size(axis))

    def resized(self, **sizes: int | bool) -> ModuleExecution:
        """Return the same with other sizes."""
        return replace(self, sizes=replace(self.sizes, **sizes))

    @property
    def activation_bytes(self) -> int:
        """Bytes of a number in its activations and their gradients, as they cross between ranks."""
        return NUMBER_BYTES[self.weights]

    def keeps_scores(self, network: ModuleArchitecture, is_causal: bool) -> bool:
        """Whether attention keeps the scores of all pairs of positions for the backward pass.

        Megatron's own does, which has whole samples.
        """
        shared = self.size(Axis.CONTEXT) > 1 or self.samples_in_row
        return network.has_plain_attention(is_causal) and not shared

    @property
    def is_frozen(self) -> bool:
        """Whether nothing in the module is trained."""
        return len(self.frozen_parts) == 2

    def in_fp32(self) -> ModuleExecution:
        """Return the same in fp32."""
        return replace(self, precision=PRECISION_OF_RUNS, weights="fp32")

    @property
    def optimizer_options(self) -> dict[str, float]:
        """Options of torch's optimizers, by name, that are not those of the run."""
        options = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        return {name: value for name, value in options.items() if value is not None}
