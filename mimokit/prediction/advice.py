"""Which tensor parallel size a model should train with, and what to set before."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mimokit.architecture.modules import Model
from mimokit.config.sizes import ParallelSizes
from mimokit.planning.weights.directory import WeightDirectory, refused
from mimokit.prediction.hardware import Hardware, load_hardware
from mimokit.prediction.layout import Layout
from mimokit.prediction.prediction import predict
from mimokit.prediction.weights_memory import computed_model, obstacle, tokens_of
from mimokit.prediction.workload import Workload, modules_of
from mimokit.units import bytes_text, counted

BLACKWELL = ("b200", "b300", "gb200", "gb300")
"""GPUs whose streams do not share one connection."""

LEFT_UNSET: Mapping[str, str] = {
    "NCCL_ALGO": "NCCL chooses the algorithm by message size, and a forced Ring or Tree turns "
    "NVLink SHARP off.",
    "NCCL_P2P_LEVEL": "NVL forbids direct access between GPUs that are connected by PCIe alone.",
}
"""Variables that other guides set -> why not to."""

SAMPLES_PER_GPU = 8
"""Of a step that is predicted."""


@dataclass(frozen=True)
class AdvisedSize:
    """A tensor parallel size that divides."""

    tensor_parallel: int
    data_parallel: int
    seconds: float
    communication_share: float
    memory_bytes: float
    fits: bool


@dataclass(frozen=True)
class Advice:
    """What to take, and why.

    Attributes:
        rejected: other sizes up to the number of GPUs -> why.
        scope: as of `CheckpointMemory`.
    """

    gpu: str
    gpus: int
    seq_length: int
    sizes: tuple[AdvisedSize, ...]
    rejected: Mapping[int, str]
    take: int | None
    why: str
    environment: Mapping[str, tuple[str, str]]
    scope: str

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            **vars(self),
            "sizes": [vars(size) for size in self.sizes],
            "rejected": {str(size): why for size, why in self.rejected.items()},
            "environment": {
                name: {"value": value, "reason": reason}
                for name, (value, reason) in self.environment.items()
            },
            "leave_unset": dict(LEFT_UNSET),
        }


def advise(
    weights: WeightDirectory, gpu: str | Hardware, gpus: int, seq_length: int | None = None
) -> Advice:
    """Return which tensor parallel size all modules should train with on so many GPUs.

    Args:
        seq_length: of the predicted step; None: 4,096, or the model's positions if fewer.

    Raises:
        ConfigError: the GPU is unknown (with the nearest names), the weights are wrong or of
            something else, a number is below 1, there are more tokens than positions, or an image
            leaves no room for text.
    """
    hardware = load_hardware(gpu)
    if gpus < 1:
        raise refused("Options", "gpus", gpus, f"gpus is {gpus}; it must be at least 1")
    seq = tokens_of(weights, seq_length)
    model, scope = computed_model(weights, seq)
    sizes, rejected = [], {}
    for size in range(1, gpus + 1):
        if why := _obstacle(weights, size, gpus):
            rejected[size] = why
        else:
            sizes.append(_advised(model, hardware, size, gpus, seq))
    take, why = _choice(sizes, hardware, gpus)
    return Advice(
        hardware.name, gpus, seq, tuple(sizes), rejected, take, why, _environment(gpu, take), scope
    )


def _obstacle(weights: WeightDirectory, size: int, gpus: int) -> str | None:
    if gpus % size:
        return f"tensor_parallel {size} does not divide the {counted(gpus, 'GPU')}"
    return obstacle(weights, size)


def _advised(model: Model, hardware: Hardware, size: int, gpus: int, seq: int) -> AdvisedSize:
    parallel = ParallelSizes(tensor=size, data=gpus // size, sequence_parallel=size > 1)
    layout = Layout("homogeneous", {module.name: parallel for module in modules_of(model)})
    workload = Workload(seq, SAMPLES_PER_GPU * gpus)
    prediction = predict(model, layout, workload, hardware)
    share = prediction.parts.get("tensor", 0.0) / prediction.seconds
    return AdvisedSize(
        size, gpus // size, prediction.seconds, share, prediction.peak_memory, prediction.fits
    )


def _choice(sizes: list[AdvisedSize], hardware: Hardware, gpus: int) -> tuple[int | None, str]:
    room = bytes_text(int(hardware.memory_bytes))
    fitting = [size for size in sizes if size.fits]
    if not fitting:
        least = min(sizes, key=lambda size: size.memory_bytes)
        return None, (
            f"No size fits: TP {least.tensor_parallel} needs "
            f"{bytes_text(int(least.memory_bytes))} of {room}; add pipeline stages, recompute or "
            "GPUs (`mimokit search` finds such layouts)."
        )
    best = min(fitting, key=lambda size: size.seconds)
    why = (
        f"Take TP {best.tensor_parallel}: of the sizes that fit it has the shortest predicted "
        f"step, {best.seconds:.3g} s, with {best.communication_share:.0%} of it in tensor parallel "
        f"collectives, and {bytes_text(int(best.memory_bytes))} of {room}"
    )
    smaller = [size for size in sizes if size.tensor_parallel < best.tensor_parallel]
    if smaller and not smaller[-1].fits:
        why += f"; TP {smaller[-1].tensor_parallel} does not fit"
    if best.tensor_parallel > hardware.domain_ranks:
        why += f"; it leaves the {counted(hardware.domain_ranks, 'GPU')} that fast links connect"
    return best.tensor_parallel, f"{why}."


def _environment(gpu: str | Hardware, take: int | None) -> Mapping[str, tuple[str, str]]:
    name = (gpu.name if isinstance(gpu, Hardware) else str(gpu)).lower()
    if take is None or take == 1 or any(family in name for family in BLACKWELL):
        return {}
    reason = (
        "CUDA reads it when it starts: with one connection, kernels begin in the order of their "
        "launch, so that collectives of tensor parallelism overlap the products next to them"
    )
    return {"CUDA_DEVICE_MAX_CONNECTIONS": ("1", reason)}
