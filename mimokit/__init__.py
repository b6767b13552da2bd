"""mimokit: plan, run, prove and understand parallel layouts of multi-module models.

Names are loaded when they are first used, so that `import mimokit` is quick everywhere.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if not (3, 11) <= sys.version_info < (3, 14):
    raise ImportError(
        "mimokit needs Python 3.11 to 3.13, but this is Python "
        f"{'.'.join(map(str, sys.version_info[:3]))}."
    )

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit import analysis as analysis
    from mimokit import architecture as architecture
    from mimokit import charts as charts
    from mimokit import cli as cli
    from mimokit import cluster as cluster
    from mimokit import config as config
    from mimokit import config_files as config_files
    from mimokit import engine as engine
    from mimokit import experiment as experiment
    from mimokit import interop as interop
    from mimokit import layout_search as layout_search
    from mimokit import planning as planning
    from mimokit import prediction as prediction
    from mimokit.architecture import from_hf as from_hf
    from mimokit.architecture import load_model as load_model
    from mimokit.config import ConfigError as ConfigError
    from mimokit.config import DataConfig as DataConfig
    from mimokit.config import ExperimentConfig as ExperimentConfig
    from mimokit.config import MimoParallelismConfig as MimoParallelismConfig
    from mimokit.config import ModuleArchitecture as ModuleArchitecture
    from mimokit.config import ModuleParallelismConfig as ModuleParallelismConfig
    from mimokit.config import RuntimeConfig as RuntimeConfig
    from mimokit.config import check_runnable as check_runnable
    from mimokit.config import preset_names as preset_names
    from mimokit.config.sizes import ParallelSizes as ParallelSizes
    from mimokit.config_files import load_experiment_config as load_experiment_config
    from mimokit.config_files import load_experiments as load_experiments
    from mimokit.config_files import load_preset as load_preset
    from mimokit.experiment.calibration import calibrate as calibrate
    from mimokit.experiment.measuring import measure as measure
    from mimokit.experiment.own_runs import calibrate_from as calibrate_from
    from mimokit.extras.foreign_loops.comparison import compare as compare
    from mimokit.extras.foreign_loops.recorder import watch as watch
    from mimokit.layout_search import Constraints as Constraints
    from mimokit.layout_search import search as search
    from mimokit.planning.proof import prove_layout as prove_layout
    from mimokit.planning.weights import plan_weights as plan_weights
    from mimokit.prediction import EncoderInput as EncoderInput
    from mimokit.prediction import Layout as Layout
    from mimokit.prediction import Workload as Workload
    from mimokit.prediction import predict as predict
    from mimokit.prediction.hardware import load_hardware as load_hardware
    from mimokit.prediction.over_samples import predict_over_samples as predict_over_samples
    from mimokit.prediction.planned import plan as plan
    from mimokit.prediction.traffic import traffic as traffic
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
