"""A config with nothing left open."""

from __future__ import annotations

from mimokit.config import ExperimentConfig
from mimokit.planning.types import LayoutPlan


def resolved_config(config: ExperimentConfig, plan: LayoutPlan) -> ExperimentConfig:
    """Return a config with every data_parallel filled in, as its plan has it."""
    sizes = {
        name: own.model_copy(update={"data_parallel": plan.modules[name].data_parallel})
        for name, own in config.model.module_parallelisms.items()
    }
    model = config.model.model_copy(update={"module_parallelisms": sizes})
    return config.model_copy(update={"model": model})
