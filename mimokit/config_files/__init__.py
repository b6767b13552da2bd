"""From a YAML file to checked configs: inheritance, implied values, sizes of weights, sweeps."""

from mimokit.config_files.loading import config_from_mapping, load_experiment_config, load_preset
from mimokit.config_files.sweep import LoadedExperiment, load_experiments

__all__ = [
    "LoadedExperiment",
    "config_from_mapping",
    "load_experiment_config",
    "load_experiments",
    "load_preset",
]
