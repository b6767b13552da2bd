"""Hardware, software and precision, and the seconds of basic operations on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mimokit.architecture.parallel_sizes import Numbers
from mimokit.prediction.hardware import Hardware
from mimokit.prediction.memory.states import OPTIMIZER, Storage
from mimokit.prediction.step_time.software import Software

HALF = 2
"""Bytes of a 16-bit number."""
KEPT_BYTES: Mapping[str, float] = {"fp8": 1.0, "mxfp8": 1.0, "nvfp4": 0.5}
"""Bytes per number that a matrix product reads, for precisions other than 16-bit."""
CAST_BYTES: Mapping[str, float] = {"fp8": 4.0, "mxfp8": 4.0, "nvfp4": 7.0}
"""Bytes moved to cast one number: 16 bits read, two copies written (rows and columns).

A cast to 4 bits reads the number twice more: for the maximum of the tensor, and for the columns,
which go through a Hadamard transform (arXiv 2509.25149, sec. 3)."""


@dataclass(frozen=True)
class System:
    """Hardware, software and precision of one prediction.

    Attributes:
        precision: of matrix products. Attention and logits are always 16-bit.
        strategy_bytes: what a strategy between replicas keeps per parameter that trains.
        optimizer_bytes: fp32 master weight and what the optimizer keeps, likewise.
    """

    hardware: Hardware
    software: Software
    precision: str = "bf16"
    strategy_bytes: float = 0.0
    optimizer_bytes: float = OPTIMIZER

    def matrix_seconds(self, flops: Numbers, precision: str | None = None) -> Numbers:
        """Return the seconds of wide matrix products."""
        kind = precision or self.precision
        reached = self.hardware.peak_flops[kind] * self.hardware.efficiency.matrix[kind]
        reached = reached * self.software.matrix_share
        return flops / reached

    def memory_seconds(self, moved: Numbers) -> Numbers:
        """Return the seconds of moving bytes through memory."""
        return moved / (self.hardware.memory_bandwidth * self.hardware.efficiency.memory)

    @property
    def half(self) -> str:
        """The precision of operations that stay 16-bit."""
        return self.precision if self.precision in ("bf16", "fp16", "fp32", "tf32") else "bf16"

    @property
    def kept_bytes(self) -> float:
        """Bytes per number that a matrix product reads."""
        return KEPT_BYTES.get(self.precision, float(HALF))

    @property
    def cast_bytes(self) -> float:
        """Bytes moved per number that is cast for a matrix product."""
        return CAST_BYTES.get(self.precision, 0.0)

    @property
    def storage(self) -> Storage:
        """Bytes per gradient, per stored input of a matrix product, and per weight."""
        weight = self.software.fp8_weight_bytes if self.precision == "fp8" else float(HALF)
        gradient = self.software.main_gradient_bytes
        return Storage(gradient, self.kept_bytes, weight, self.strategy_bytes, self.optimizer_bytes)

    @property
    def pipelines_tensor(self) -> bool:
        """Whether collectives run in pieces next to the pieces of products.

        Megatron-Bridge's recipes disable this for 4-bit products.
        """
        return self.software.tensor_overlap == "pipelined" and self.precision != "nvfp4"
