"""Hardware, training stack and precision, and the seconds of basic operations on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from mimokit.architecture.parallel_sizes import Numbers
from mimokit.config.errors import unknown_name
from mimokit.prediction.hardware import Hardware
from mimokit.prediction.memory.states import MASTER_WEIGHT, OPTIMIZER, Storage

TensorOverlap = Literal["none", "async", "pipelined"]
LAUNCH = 6e-4
"""Host seconds of launching one pass of a dense layer, on hosts of GPUs after the A100. Of 3, 4.5,
6 and 9e-4 this has the least error over published steps with small micro-batches."""


@dataclass(frozen=True)
class Software:
    """A training stack.

    Attributes:
        rotates: rotary positions in each layer; otherwise learned positions are added once.
        host_layer: host seconds of launching the forward or backward pass of one layer.
        host_expert_layer: the same for a layer with experts: routing, permutation, and one matrix
            product and cast per expert.
        host_collective: seconds that the host of a tensor-parallel rank waits for the other ranks
            at one gather, scatter or all-reduce.
        host_micro_batch: host seconds at the start of a micro-batch in which the GPU of a stage
            waits: samples are read and broadcast to tensor-parallel ranks.
        host_softmax: additional host seconds per pass of a layer if the fused softmax does not
            support its number of scores (`layer.SCORES_PER_BLOCK`).
        launches_ahead: the host launches the next kernels while a tensor-parallel collective runs.
            Otherwise the time of collectives is added to the launch time.
        matrix_share: share of the GPU's sustained matrix rate that the products of this stack
            reach. Kernels tuned for the shapes of a model reach 1.
        tensor_overlap: overlap of tensor-parallel communication with matrix products; see
            `tensor_seconds`.
        overlaps_data: gradients are reduced during the backward pass, weights are gathered during
            the forward pass.
        main_gradient_bytes: bytes per gradient in memory, between backward passes and optimizer.
        fp8_weight_bytes: bytes per weight in the matrices of a dense model that trains in fp8: 1
            if only 8 bits are stored, 2 with a transposed copy or in 16 bits.
        expert_passes: number of times that a token is moved through memory between the router and
            the matrix product of its expert, and back.
        expert_kernels: kernels per expert in a forward pass: two products, and the casts, copies
            and padding of their inputs.
    """

    name: str
    fused_attention: bool = True
    fused_elementwise: bool = True
    rotates: bool = True
    host_layer: float = 0.0
    host_expert_layer: float = 0.0
    host_collective: float = 0.0
    host_micro_batch: float = 0.0
    host_softmax: float = 0.0
    launches_ahead: bool = True
    matrix_share: float = 1.0
    tensor_overlap: TensorOverlap = "none"
    overlaps_data: bool = True
    gradient_bytes: int = 4
    main_gradient_bytes: int = 4
    fp8_weight_bytes: float = 2.0
    expert_passes: float = 4.0
    expert_kernels: float = 2.0


BRIDGE = Software(
    "megatron-bridge",
    gradient_bytes=2,
    main_gradient_bytes=2,
    fp8_weight_bytes=1.0,
    host_layer=LAUNCH,
    host_collective=0.000489,
    host_expert_layer=0.00445,
    tensor_overlap="pipelined",
    expert_passes=5.23,
    expert_kernels=6.8,
)
"""Megatron-Bridge's performance recipes since 26.02.01 (`grad_reduce_in_fp32=False`; for dense
models in fp8 `fp8_param_gather=True` and `disable_parameter_transpose_cache=True`)."""

BRIDGE_2025 = replace(BRIDGE, name="megatron-bridge-2025", expert_passes=10.5)
"""The same from 25.11 to 26.02: the permutations of expert dispatch are not fused."""

BRIDGE_DROPPING = replace(BRIDGE_2025, name="megatron-bridge-dropping", host_expert_layer=0.00164)
"""The same in 25.09: experts drop tokens above their capacity, so the host does not wait for token
counts."""

MEGATRON_CORE = Software(
    "megatron-core",
    fused_elementwise=False,
    host_layer=LAUNCH,
    host_collective=0.000489,
    host_expert_layer=0.00445,
    matrix_share=0.723,
    tensor_overlap="async",
    overlaps_data=False,
    expert_passes=10.5,
    expert_kernels=6.8,
)
"""Megatron-LM on megatron-core with default options: flash attention; gradient reduction and weight
gathering are not overlapped (no `--overlap-grad-reduce`, no `--overlap-param-gather`)."""

MEGATRON_MIMO = Software(
    "megatron-mimo", host_layer=9e-4, overlaps_data=False, gradient_bytes=2, main_gradient_bytes=2
)
"""Megatron-LM with modules of different layouts (arXiv 2605.27678): gradients are reduced after the
last backward pass, in bf16 (fp32 gradients would not fit in the memory of those runs). Its encoders
have few tokens, so launch time matters. It is fitted to the gains in that paper."""

MEGATRON_2021 = Software(
    "megatron-2021",
    fused_attention=False,
    rotates=False,
    host_layer=0.000993,
    host_micro_batch=0.00215,
    host_softmax=0.000471,
    launches_ahead=False,
    overlaps_data=False,
    gradient_bytes=2,
)
"""Megatron-LM of 2021 and 2022 (arXiv 2104.04473, 2205.05198): learned positions; bias and GELU,
bias, dropout and residual are one kernel each (2104.04473, sec. 4.2), attention is not."""

_ALL = {
    stack.name: stack
    for stack in (BRIDGE, BRIDGE_2025, BRIDGE_DROPPING, MEGATRON_CORE, MEGATRON_MIMO, MEGATRON_2021)
}


def software_names() -> tuple[str, ...]:
    """Return the names of the known training stacks."""
    return tuple(_ALL)


def load_software(name: str | Software) -> Software:
    """Return a training stack by its name.

    Raises:
        ConfigError: the name is unknown; the sentence suggests similar names.
    """
    if isinstance(name, Software):
        return name
    if name not in _ALL:
        raise unknown_name("Software", name, _ALL)
    return _ALL[name]


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
            gradient=self.main_gradient_bytes,
            product_input=self.kept_bytes,
            matrix_weight=self.software.fp8_weight_bytes if self.precision == "fp8" else number,
            strategy=self.strategy_bytes,
            optimizer=self.optimizer_bytes - master,
            number=number,
            weight=number,
            fused_attention=self.software.fused_attention,
        )

    @property
    def pipelines_tensor(self) -> bool:
        """Whether collectives run in pieces next to the pieces of products.

        Megatron-Bridge's recipes disable this for 4-bit products.
        """
        return self.software.tensor_overlap == "pipelined" and self.precision != "nvfp4"
