"""Seconds per step of operators, collectives, pipelines and modules."""

from mimokit.prediction.step_time.breakdown import TimeBreakdown
from mimokit.prediction.step_time.pipeline import ModuleStep, module_step
from mimokit.prediction.step_time.software import Software, load_software, software_names
from mimokit.prediction.step_time.stage import ModuleInput
from mimokit.prediction.step_time.system import System

__all__ = [
    "ModuleInput",
    "ModuleStep",
    "Software",
    "System",
    "TimeBreakdown",
    "load_software",
    "module_step",
    "software_names",
]
