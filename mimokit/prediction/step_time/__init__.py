"""Seconds per step: operators, collectives, pipelines, modules."""

from mimokit.prediction.step_time.breakdown import Parts
from mimokit.prediction.step_time.pipeline import ModuleStep, module_step
from mimokit.prediction.step_time.software import Software, load_software, software_names
from mimokit.prediction.step_time.stage import Work
from mimokit.prediction.step_time.system import Setting

__all__ = [
    "ModuleStep",
    "Parts",
    "Setting",
    "Software",
    "Work",
    "load_software",
    "module_step",
    "software_names",
]
