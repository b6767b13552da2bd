"""GPUs, their links, and the share of their specification that programs reach."""

from mimokit.prediction.hardware.hardware import (
    UNKNOWN_LINK,
    Cores,
    Efficiency,
    Hardware,
    RankLink,
    hardware_names,
    load_hardware,
    save_hardware,
)

__all__ = [
    "UNKNOWN_LINK",
    "Cores",
    "Efficiency",
    "Hardware",
    "RankLink",
    "hardware_names",
    "load_hardware",
    "save_hardware",
]
