"""What the user asks for: config classes and the rules that they follow.

Names load on first use: a command that refuses its options needs `ConfigError` alone.
"""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.config.architecture import ModuleArchitecture as ModuleArchitecture
    from mimokit.config.architecture import ModuleOptimizerConfig as ModuleOptimizerConfig
    from mimokit.config.data import DataConfig as DataConfig
    from mimokit.config.data import ModalityPresence as ModalityPresence
    from mimokit.config.errors import ConfigError as ConfigError
    from mimokit.config.errors import Fix as Fix
    from mimokit.config.errors import Problem as Problem
    from mimokit.config.experiment import ExperimentConfig as ExperimentConfig
    from mimokit.config.experiment import MimoParallelismConfig as MimoParallelismConfig
    from mimokit.config.layer_architecture import ProjectorArchitecture as ProjectorArchitecture
    from mimokit.config.layer_architecture import RopeScaling as RopeScaling
    from mimokit.config.parallelism import ModuleParallelismConfig as ModuleParallelismConfig
    from mimokit.config.prediction import PredictedInput as PredictedInput
    from mimokit.config.prediction import PredictionConfig as PredictionConfig
    from mimokit.config.presets import preset_names as preset_names
    from mimokit.config.rules import check_experiment as check_experiment
    from mimokit.config.rules import check_model as check_model
    from mimokit.config.rules.runtime_rules import check_runnable as check_runnable
    from mimokit.config.runtime import DeploymentMode as DeploymentMode
    from mimokit.config.runtime import PipelineSchedule as PipelineSchedule
    from mimokit.config.runtime import RuntimeConfig as RuntimeConfig
    from mimokit.config.sections import ExperimentSections as ExperimentSections
    from mimokit.config.sections import ModelSection as ModelSection
    from mimokit.config.strategy import NetworkConfig as NetworkConfig
    from mimokit.config.strategy import OptimizerConfig as OptimizerConfig
    from mimokit.config.strategy import StrategyConfig as StrategyConfig
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
