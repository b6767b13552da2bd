"""The peak of a rank's device, of which utilisation is a share."""

from mimokit.config.errors import ConfigError, Problem
from mimokit.config.runtime import PRECISION_OF_RUNS, RuntimeConfig
from mimokit.prediction.hardware import Hardware, load_hardware


def peak_of_hardware(runtime: RuntimeConfig, world_size: int) -> float | None:
    """Return the FLOP/s of one rank at most on `runtime.hardware`; None if that is not given.

    What `calibrate` measured on a CPU is the peak of a core, which ranks may share.
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
