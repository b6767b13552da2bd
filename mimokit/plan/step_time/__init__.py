"""Seconds per step: operators, collectives, pipelines, modules."""

from mimokit.plan.step_time.module_time import Work
from mimokit.plan.step_time.parts import Parts
from mimokit.plan.step_time.pipeline import ModuleStep, module_step
from mimokit.plan.step_time.setting import Setting
from mimokit.plan.step_time.software import Software, load_software, software_names

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
