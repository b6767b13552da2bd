"""Hardware, training stack and precision, and the rates of basic operations on them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from mimokit.config.sizes import Numbers
from mimokit.prediction.hardware import Hardware
from mimokit.prediction.memory.states import MASTER_WEIGHT, OPTIMIZER, Storage
from mimokit.prediction.step_time.constants import CONSTANTS, chip_of
from mimokit.prediction.step_time.recipe import NARROW_PRECISIONS, Recipe
from mimokit.prediction.step_time.software import Software
from mimokit.prediction.step_time.terms import FITTED, OF_FILE, OWN_RUNS, TimePiece

HALF, FULL = 2, 4
"""Bytes of a number of 16 and of 32 bits."""
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
        precision: of matrix products. Attention and logits have at least 16 bits.
    """

    hardware: Hardware
    software: Software
    precision: str = "bf16"
    strategy_bytes: float = 0.0
    gathered_bytes: float = 0.0
    optimizer_bytes: float = OPTIMIZER
    recipe: Recipe = field(default_factory=Recipe)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Mappings of a `Hardware` have no hash; systems that differ elsewhere are unequal as well.
        hardware = self.hardware
        links = hardware.domain, hardware.network
        rates = hardware.memory_bandwidth, *hardware.efficiency.matrix.values()
        return hash((hardware.name, links, rates, self.software, self.precision, self.recipe))

    @cached_property
    def connected(self) -> Hardware:
        """The hardware with the bandwidth between domains that this stack reaches."""
        share = self.software.network_share
        if share == 1:
            return self.hardware
        efficiency = self.hardware.efficiency
        slower = replace(efficiency, network=efficiency.network * share)
        return replace(self.hardware, efficiency=slower)

    def matrix_rate(self, precision: str | None = None) -> float:
        """Return the operations per second that wide matrix products sustain."""
        kind = precision or self.precision
        reached = self.hardware.peak_flops[kind] * self.hardware.efficiency.matrix[kind]
        return reached * self.software.matrix_share

    @property
    def memory_rate(self) -> float:
        """Bytes per second that elementwise kernels move through memory."""
        reached = self.hardware.memory_bandwidth * self.hardware.efficiency.memory
        return reached * self.software.memory_share

    @property
    def micro_batch_start(self) -> float:
        """Seconds at the start of a micro-batch, of the host or of a core."""
        cores = self.hardware.cores
        return self.software.host_micro_batch + (0.0 if cores is None else cores.micro_batch)

    def operations(self, count: Numbers, precision: str | None = None) -> TimePiece:
        """Return the piece of operations of wide matrix products."""
        return TimePiece(
            count, 1 / self.matrix_rate(precision), "operations", self._basis["matrix"]
        )

    def moved(self, count: Numbers) -> TimePiece:
        """Return the piece of bytes that elementwise kernels move through memory."""
        return TimePiece(count, 1 / self.memory_rate, "bytes", self._basis["memory"])

    @cached_property
    def _basis(self) -> Mapping[str, str]:
        chip = chip_of(self.hardware.name)
        names = {
            "matrix": f"matrix {chip}",
            "memory": "memory a100" if chip == "a100" else "memory",
        }
        file = {kind: FITTED if chip and names[kind] in CONSTANTS else OF_FILE for kind in names}
        return dict.fromkeys(names, OWN_RUNS) if self.software.gpu else file

    @property
    def is_narrow(self) -> bool:
        """Whether products have fewer than 16 bits, so that their inputs are cast."""
        return self.precision in NARROW_PRECISIONS

    @property
    def half(self) -> str:
        """The precision of operations that no precision does in fewer than 16 bits."""
        return self.precision if self.precision in ("bf16", "fp16", "fp32", "tf32") else "bf16"

    @property
    def number_bytes(self) -> int:
        """Bytes of an activation or a weight, apart from what products read in fewer bits."""
        return FULL if self.precision in ("fp32", "tf32") else HALF

    @property
    def gradient_bytes(self) -> int:
        """Bytes per gradient that is reduced."""
        return max(self.software.gradient_bytes, self.number_bytes)

    @property
    def main_gradient_bytes(self) -> int:
        """Bytes per gradient in memory, between backward passes and optimizer."""
        return max(self.software.main_gradient_bytes, self.number_bytes)

    @property
    def kept_bytes(self) -> float:
        """Bytes per number that a matrix product reads."""
        return KEPT_BYTES.get(self.precision, float(self.number_bytes))

    @property
    def cast_bytes(self) -> float:
        """Bytes moved per number that is cast for a matrix product."""
        return CAST_BYTES.get(self.precision, 0.0)

    @property
    def storage(self) -> Storage:
        """Bytes per gradient, per stored input of a matrix product, and per weight."""
        number = float(self.number_bytes)
        master = MASTER_WEIGHT if self.number_bytes == FULL else 0  # the weights are the master's
        return Storage(
            gradient=self.main_gradient_bytes + self.number_bytes * self.software.keeps_gradients,
            product_input=self.kept_bytes,
            matrix_weight=self.software.fp8_weight_bytes if self.precision == "fp8" else number,
            strategy=self.strategy_bytes,
            gathered=self.gathered_bytes,
            optimizer=self.optimizer_bytes - master,
            number=number,
            weight=number,
            fused_attention=self.software.fused_attention,
            dummy_gradients=self.software.dummy_gradients,
            recompute_layers=self.recipe.recompute_layers,
            recompute_modules=self.recipe.recompute_modules,
            reserved=self.software.reserved,
            keeps_copies=self.software.keeps_copies,
            whole_buffers=self.software.whole_buffers,
            logit_copies=self.software.logit_copies,
        )

    @property
    def pipelines_tensor(self) -> bool:
        """Whether collectives run in pieces next to the pieces of products.

        Megatron-Bridge's recipes disable this for 4-bit products.
        """
        return self.software.tensor_overlap == "pipelined" and self.precision != "nvfp4"
