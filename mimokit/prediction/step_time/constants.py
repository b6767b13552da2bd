"""The constants of step time that no data sheet states: meaning, unit, bounds, source.

A fit moves a constant inside its bounds only. What ends on a bound stands for something that is not
modelled, and is reported.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SHARE, SECONDS, COUNT = "share", "s", "count"


@dataclass(frozen=True)
class Constant:
    """A constant that is not read from a data sheet.

    Attributes:
        value: that ships, for all GPUs and stacks of which no other is stated.
        low: least value that the source allows.
        source: of the value and of its bounds.
        fitted: the value follows from published steps, inside the bounds.
    """

    name: str
    meaning: str
    unit: str
    value: float
    low: float
    high: float
    source: str
    fitted: bool = False

    def holds(self, value: float) -> bool:
        """Return whether a value is inside the bounds."""
        return math.isfinite(value) and self.low <= value <= self.high


def _table(constants: Iterable[Constant]) -> Mapping[str, Constant]:
    return {constant.name: constant for constant in constants}


CONSTANTS: Mapping[str, Constant] = _table(
    (
        Constant(
            "matrix h100", "share of peak 16-bit arithmetic that products of a layer sustain",
            SHARE, 0.703, 0.55, 0.75,
            "cuBLAS at 8192 cubed 0.81; long runs are held by power", fitted=True,
        ),
        Constant(
            "matrix b200", "the same on B200 (and GB200, at the same operations per second)",
            SHARE, 0.63, 0.45, 0.70,
            "SimuMax v1.2, 514 products: 0.49; Transformer Engine issue 2053: 0.65 to 0.73",
            fitted=True,
        ),
        Constant(
            "matrix b300", "the same on B300 (and GB300)",
            SHARE, 0.83, 0.60, 0.83,
            "B200's at 1,400 W instead of 1,000 W, of a peak 11 % higher", fitted=True,
        ),
        Constant(
            "narrow 8", "rate of 8-bit products over twice that of 16-bit products",
            SHARE, 0.93, 0.85, 1.0, "casts are counted on their own; Transformer Engine issue 2053",
        ),
        Constant(
            "narrow 4", "rate of 4-bit products over that of the peak at the share of 16 bits",
            SHARE, 0.78, 0.60, 0.90, "arXiv 2509.25149; casts are counted on their own",
        ),
        Constant(
            "memory", "share of memory bandwidth that elementwise kernels reach",
            SHARE, 0.55, 0.55, 0.85,
            "SimuMax v1.2 on B200: permutation 0.50; copies 0.9", fitted=True,
        ),
        Constant(
            "attention", "share of peak 16-bit arithmetic of the attention core's forward pass",
            SHARE, 0.52, 0.44, 0.60, "SimuMax v1.2, 64 cores on B200",
        ),
        Constant(
            "attention b300", "the same on B300 and GB300, whose exponentials are twice as fast",
            SHARE, 0.60, 0.52, 0.75, "NVIDIA: twice the attention acceleration of B200",
        ),
        Constant(
            "attention backward", "seconds of its backward pass over those of its forward pass",
            COUNT, 3.0, 2.8, 3.4,
            "five products at 0.36 to 0.48 of peak against two at 0.44 to 0.60 (SimuMax v1.2)",
        ),
        Constant(
            "attention key", "seconds in which a block of queries passes one key",
            SECONDS, 50e-6 / 4096, 30e-6 / 4096, 70e-6 / 4096,
            "SimuMax v1.2: what remains of short cores, 50 µs of 4,096 keys",
        ),
        Constant(
            "kernel", "seconds at the start and end of a kernel",
            SECONDS, 3e-6, 2e-6, 6e-6, "SimuMax v1.2, B200: products take 5.7 µs with a cold start",
        ),
        Constant(
            "expert product", "seconds of a small product that is launched by itself",
            SECONDS, 9.4e-6, 3e-6, 12e-6, "SimuMax v1.2, 108 grouped products on B200",
        ),
        Constant(
            "expert kernel", "seconds of a kernel of one expert: cast, copy, padding",
            SECONDS, 6e-6, 3e-6, 9.4e-6, "SimuMax v1.2, B200",
        ),
        Constant(
            "fused passes", "times that a dispatched token crosses memory, permutation fused",
            COUNT, 3.09, 2.0, 9.0,
            "counted from Megatron's token dispatcher: read and written to permute and to restore, "
            "4, and padding; HybridEP permutes as it receives, 2", fitted=True,
        ),
        Constant(
            "unfused passes", "the same with a permutation that is not fused",
            COUNT, 4.55, 4.0, 14.0,
            "counted from Megatron's token dispatcher: 6 to 14; with HybridEP 4", fitted=True,
        ),
        Constant(
            "host_layer", "host time to launch one pass of a dense layer in 16 bits",
            SECONDS, 1.1e-3, 0.5e-3, 2.5e-3,
            "Transformer Engine issue 2053: 100 µs per Linear on Grace; arXiv 2605.27678's steps",
        ),
        Constant(
            "narrow launch", "host time of a layer in 8 or 4 bits over that in 16",
            COUNT, 2.0, 1.0, 2.5, "Transformer Engine issue 761: 140 ms against 77 ms",
        ),
        Constant(
            "host_experts", "host time that routed experts add to one pass of a layer",
            SECONDS, 2.5e-3, 1e-3, 4e-3,
            "Bridge's Qwen3 30B with one sample per micro-batch: 4.5 to 4.8 ms a pass, less dense",
        ),
        Constant(
            "host partly",
            "share of `host_experts` that stays if router and preprocessing are captured",
            SHARE, 0.85, 0.6, 1.0, "the same rows: 4.5 ms with partial graphs, 4.7 ms without",
        ),
        Constant(
            "host_counts", "host time to wait for the counts of tokens per expert",
            SECONDS, 80e-6, 30e-6, 200e-6, "a copy to the host behind the router's kernels",
        ),
        Constant(
            "host_collective", "host time to launch a tensor-parallel collective and its waits",
            SECONDS, 50e-6, 30e-6, 100e-6,
            "vTrain's tables: flat 93 µs up to 2 MiB, device included",
        ),
        Constant(
            "links", "share of the bandwidth inside a domain that ring collectives reach",
            SHARE, 0.72, 0.60, 0.82, "nccl-tests issues 212 and 290: 370 of 450 GB/s on H100",
        ),
        Constant(
            "network", "share of a port's bandwidth that collectives between domains reach",
            SHARE, 0.90, 0.85, 0.95, "nccl-tests: 46 to 48 of 50 GB/s per NDR port",
        ),
        Constant(
            "dispatch all-to-all", "share of the links that NCCL's all-to-all reaches",
            SHARE, 0.45, 0.30, 0.60, "SimuMax v1.2 on B200: 0.6 at 8 ranks, less with more",
        ),
        Constant(
            "dispatch fused", "share of the links that HybridEP and DeepEP reach",
            SHARE, 0.70, 0.50, 0.78,
            "DeepEP, README_Hybrid-EP.md: 632 to 764 of 900 GB/s in the kernel",
        ),
        Constant(
            "dispatch contention", "share of overlapped dispatch by which both become slower",
            SHARE, 0.5, 0.16, 0.65,
            "20 of 132 multiprocessors; Bridge's notes: only 37 % of it is hidden",
        ),
        Constant(
            "matrix a100", "share of peak 16-bit arithmetic that products sustain on A100",
            SHARE, 0.799, 0.72, 0.85, "SimuMax's A100 PCIe: 0.74 by itself", fitted=True,
        ),
        Constant(
            "memory a100", "share of A100's memory bandwidth that elementwise kernels reach",
            SHARE, 0.639, 0.60, 0.90, "copies 0.9", fitted=True,
        ),
        Constant(
            "links a100", "`links` of A100s and of A6000s",
            SHARE, 0.76, 0.60, 0.82, "vTrain's tables: 229 of 300 GB/s at 1 GiB",
        ),
        Constant(
            "attention a100", "`attention` of A100s and of A6000s",
            SHARE, 0.5, 0.44, 0.60, "assumed, inside what later GPUs reach: none was measured",
        ),
        Constant(
            "kernel a100", "`kernel` in the software of 2021, gaps between launches included",
            SECONDS, 10.2e-6, 5e-6, 15e-6, "vTrain's measured steps; eager kernels of A100s",
        ),
        Constant(
            "host_layer 2021", "`host_layer` of Megatron-LM of 2021",
            SECONDS, 0.00101, 0.5e-3, 1.5e-3, "25 to 50 eager kernels of 20 to 30 µs", fitted=True,
        ),
        Constant(
            "host_micro_batch 2021", "host time at the start of a micro-batch",
            SECONDS, 0.00214, 1e-3, 3e-3, "reading samples and sending them to ranks", fitted=True,
        ),
        Constant(
            "host_softmax 2021", "host time of an unfused softmax, more than of the fused one",
            SECONDS, 0.000475, 0.3e-3, 0.7e-3, "8 more kernels of 50 µs", fitted=True,
        ),
        Constant(
            "host_layer nanotron", "`host_layer` of Nanotron, whose kernels are not fused",
            SECONDS, 1.85e-3, 0.5e-3, 2.5e-3, "Playbook: 4.4 ms a layer at any TP on one node",
        ),
        Constant(
            "matrix nanotron", "share of `matrix h100` that products of Nanotron reach",
            SHARE, 0.83, 0.7, 1.0, "Playbook, 1 to 32 nodes", fitted=True,
        ),
        Constant(
            "host_piped", "seconds per tensor rank of a collective in a pipeline over nodes, more",
            SECONDS, 0.27e-3, 0.05e-3, 0.6e-3,
            "Playbook, 1 sample a micro-batch: 8.5, 13, 21 ms a layer at TP 2, 4, 8, not 4.4",
            fitted=True,
        ),
        Constant(
            "straggling", "share that a step takes longer for each doubling of nodes",
            SHARE, 0.01, 0.0, 0.05, "Playbook, 1 to 32 nodes; assumed, inside what fits it",
        ),
        Constant(
            "network efa", "`network` of Elastic Fabric Adapters",
            SHARE, 0.39, 0.2, 0.95, "Playbook, 2 to 32 nodes", fitted=True,
        ),
    )
)  # fmt: skip


def value(name: str) -> float:
    """Return the value of a constant that ships."""
    return CONSTANTS[name].value


_CHIPS: Mapping[str, tuple[str, ...]] = {
    "a100": ("A100",),
    "h100": ("H100", "H200"),
    "b200": ("B200", "GB200"),
    "b300": ("B300", "GB300"),
}


def chip_of(gpu: str) -> str | None:
    """Return the chip of a GPU by its full name, None for any other."""
    words = gpu.upper().replace("-", " ").split()
    for chip, names in _CHIPS.items():
        if any(name in words for name in names):
            return chip
    return None
