"""The peak of a rank's device, of which utilisation is a share."""

import re

from mimokit.config.errors import ConfigError, Problem
from mimokit.config.runtime import PRECISION_OF_RUNS, RuntimeConfig
from mimokit.prediction.hardware import Hardware, hardware_names, load_hardware

_OTHER_BOARDS = re.compile(r"\b(h100|h200)\b.*\b(pcie|nvl)\b")
"""GPUs of the same name whose peak is not that of the shipped hardware, which is SXM."""


def peak_of_hardware(runtime: RuntimeConfig, world_size: int) -> float | None:
    """Return the FLOP/s of one rank at most on `runtime.hardware`; None if that is not given.

    What `calibrate` measured on a CPU is the peak of a core, which ranks may share.

    Raises:
        ConfigError: the hardware does not exist, or its peak in the run's precision is not known.
    """
    source = runtime.hardware
    if source is None:
        return None
    hardware, precision = load_hardware(source), runtime.precision or PRECISION_OF_RUNS
    if precision not in hardware.peak_flops:
        known = ", ".join(hardware.peak_flops)
        sentence = (
            f"Section 'runtime': hardware '{source}' has no peak_flops of {precision}, which the "
            f"run computes in; those have: {known}."
        )
        raise ConfigError([Problem("runtime", "hardware", source, sentence)])
    return peak_of_rank(hardware, precision, world_size)


def peak_of_rank(hardware: Hardware, precision: str, ranks: int) -> float:
    """Return the FLOP/s of one of several ranks at most, which may share cores."""
    return hardware.peak_flops[precision] / max(1.0, float(hardware.ranks_per_core(ranks)))


def peak_of_device(name: str | None, precision: str | None = None) -> float | None:
    """Return the FLOP/s of a GPU at most.

    Args:
        name: as CUDA reports it, such as "NVIDIA H100 80GB HBM3".
        precision: of matrix products; None: that of runs.

    Returns:
        None without a GPU, or if none of that name is among the shipped hardware.
    """
    words = (name or "").lower()
    if _OTHER_BOARDS.search(words):
        return None
    for known in hardware_names():
        if re.search(rf"\b{re.escape(known)}\b", words):
            return load_hardware(known).peak_flops.get(precision or PRECISION_OF_RUNS)
    return None
