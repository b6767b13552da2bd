"""What a layer runs on, and what operations take there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mimokit.architecture.parallel_sizes import Numbers
from mimokit.prediction.hardware import Hardware
from mimokit.prediction.memory.states import Storage
from mimokit.prediction.step_time.software import Software

HALF = 2
"""Bytes of a 16-bit number."""
KEPT_BYTES: Mapping[str, float] = {"fp8": 1.0, "mxfp8": 1.0, "nvfp4": 0.5}
"""Bytes per number that a matrix product reads, where it is not 16-bit."""
CAST_BYTES: Mapping[str, float] = {"fp8": 4.0, "mxfp8": 4.0, "nvfp4": 7.0}
"""Bytes through memory to cast one number: 16 bits read, two copies written (rows and columns).

To 4 bits it is read once more for the largest number of the tensor, and once more for the columns,
which go through a Hadamard transform (arXiv 2509.25149, sec. 3)."""


@dataclass(frozen=True)
class System:
    """What a layer runs on.

    Attributes:
        hardware: GPU and links.
        software: the training stack.
        precision: of matrix products; attention and logits are 16-bit in any case.
    """

    hardware: Hardware
    software: Software
    precision: str = "bf16"

    def matrix_seconds(
        self, flops: Numbers, precision: str | None = None, width: Numbers = np.inf
    ) -> Numbers:
        """Return the seconds of matrix products; `width` is the narrower side on one rank."""
        kind = precision or self.precision
        reached = self.hardware.peak_flops[kind] * self.hardware.efficiency.matrix[kind]
        reached = reached * self.software.matrix_share
        return flops / reached * (1 + self.hardware.efficiency.half_width / width)

    def memory_seconds(self, moved: Numbers) -> Numbers:
        """Return the seconds of moving bytes through memory."""
        return moved / (self.hardware.memory_bandwidth * self.hardware.efficiency.memory)

    @property
    def half(self) -> str:
        """The 16-bit precision of what stays 16-bit."""
        return self.precision if self.precision in ("bf16", "fp16", "fp32", "tf32") else "bf16"

    @property
    def kept_bytes(self) -> float:
        """Bytes per number that matrix products read."""
        return KEPT_BYTES.get(self.precision, float(HALF))

    @property
    def cast_bytes(self) -> float:
        """Bytes through memory per number that is cast for a matrix product."""
        return CAST_BYTES.get(self.precision, 0.0)

    @property
    def storage(self) -> Storage:
        """Bytes of gradients, of what matrix products keep, and of their weights."""
        weight = self.software.fp8_weight_bytes if self.precision == "fp8" else float(HALF)
        return Storage(self.software.main_gradient_bytes, self.kept_bytes, weight)

    @property
    def pipelines_tensor(self) -> bool:
        """Collectives run in pieces beside the pieces of products.

        With 4-bit products Megatron-Bridge's recipes switch it off.
        """
        return self.software.tensor_overlap == "pipelined" and self.precision != "nvfp4"
