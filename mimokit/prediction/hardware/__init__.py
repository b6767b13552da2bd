"""GPUs, their links, and the share of their specification that programs reach."""

from mimokit.prediction.hardware.files import hardware_names, load_hardware, save_hardware
from mimokit.prediction.hardware.hardware import Efficiency, Hardware, RankLink

__all__ = [
    "Efficiency",
    "Hardware",
    "RankLink",
    "hardware_names",
    "load_hardware",
    "save_hardware",
]
