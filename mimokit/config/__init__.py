"""What the user asks for: config classes and the rules that they follow."""

from mimokit.config.architecture import ModuleArchitecture, ModuleOptimizerConfig
from mimokit.config.data import DataConfig, ModalityPresence
from mimokit.config.errors import ConfigError, Fix, Problem
from mimokit.config.experiment import ExperimentConfig
from mimokit.config.layer_architecture import ProjectorArchitecture, RopeScaling
from mimokit.config.model import MimoParallelismConfig
from mimokit.config.parallelism import ModuleParallelismConfig
from mimokit.config.prediction import PredictedInput, PredictionConfig
from mimokit.config.presets import preset_names
from mimokit.config.rules import check_experiment, check_model
from mimokit.config.rules.runtime_rules import check_runnable
from mimokit.config.runtime import DeploymentMode, PipelineSchedule, RuntimeConfig
from mimokit.config.strategy import NetworkConfig, OptimizerConfig, StrategyConfig

__all__ = [
    "ConfigError",
    "DataConfig",
    "DeploymentMode",
    "ExperimentConfig",
    "Fix",
    "MimoParallelismConfig",
    "ModalityPresence",
    "ModuleArchitecture",
    "ModuleOptimizerConfig",
    "ModuleParallelismConfig",
    "NetworkConfig",
    "OptimizerConfig",
    "PipelineSchedule",
    "PredictedInput",
    "PredictionConfig",
    "Problem",
    "ProjectorArchitecture",
    "RopeScaling",
    "RuntimeConfig",
    "StrategyConfig",
    "check_experiment",
    "check_model",
    "check_runnable",
    "preset_names",
]
