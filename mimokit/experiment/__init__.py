"""Runs a config on a cluster: training, sweeps, verification, the stepper, calibration.

Names load on first use: planning from the command line needs neither a cluster nor pandas.
"""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.config.runtime import Evaluations as Evaluations
    from mimokit.experiment.calibration import calibrate as calibrate
    from mimokit.experiment.culprit.explain import Reference as Reference
    from mimokit.experiment.culprit.explain import compute_reference as compute_reference
    from mimokit.experiment.culprit.explain import explain as explain
    from mimokit.experiment.culprit.report import CulpritReport as CulpritReport
    from mimokit.experiment.reconnecting import reconnect as reconnect
    from mimokit.experiment.resume_proof import resume_check as resume_check
    from mimokit.experiment.resume_report import ResumeReport as ResumeReport
    from mimokit.experiment.snapshot import StepSnapshot as StepSnapshot
    from mimokit.experiment.stepper import Stepper as Stepper
    from mimokit.experiment.stepping.at_culprit import stepper_at as stepper_at
    from mimokit.experiment.stepping.ranks import StepperError as StepperError
    from mimokit.experiment.sweeps.records import ExperimentRecord as ExperimentRecord
    from mimokit.experiment.sweeps.records import ExperimentStatus as ExperimentStatus
    from mimokit.experiment.sweeps.runner import SweepResult as SweepResult
    from mimokit.experiment.sweeps.runner import SweepRun as SweepRun
    from mimokit.experiment.sweeps.start import sweep as sweep
    from mimokit.experiment.training import TrainingResult as TrainingResult
    from mimokit.experiment.training import TrainingRun as TrainingRun
    from mimokit.experiment.training import train as train
    from mimokit.experiment.verification import Oracle as Oracle
    from mimokit.experiment.verification import compute_oracle as compute_oracle
    from mimokit.experiment.verification import verify as verify
    from mimokit.experiment.verification_report import VerificationReport as VerificationReport
    from mimokit.extras.generation.check.report import CheckReport as CheckReport
    from mimokit.extras.generation.check.weight_check import check_weights as check_weights
    from mimokit.extras.generation.on_ranks import Generation as Generation
    from mimokit.extras.generation.sharded_model import ShardedModel as ShardedModel
    from mimokit.extras.shrinking.report import ShrunkReport as ShrunkReport
    from mimokit.extras.shrinking.report import explain_shrunk as explain_shrunk
    from mimokit.extras.strategies.fits.arguments import FitArguments as FitArguments
    from mimokit.extras.strategies.fits.run import FitResult as FitResult
    from mimokit.extras.strategies.fits.run import FitRun as FitRun
    from mimokit.extras.strategies.fits.trainer import Trainer as Trainer
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
