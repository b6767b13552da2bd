"""From a YAML file to checked configs: inheritance, implied values, sizes of weights, sweeps."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.config_files.loading import config_from_mapping as config_from_mapping
    from mimokit.config_files.loading import load_experiment_config as load_experiment_config
    from mimokit.config_files.loading import load_preset as load_preset
    from mimokit.config_files.sweep import LoadedExperiment as LoadedExperiment
    from mimokit.config_files.sweep import load_experiments as load_experiments
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
