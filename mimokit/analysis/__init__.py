"""Samples and results folders as pandas tables, compared and explained."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.analysis.comparison import Comparison as Comparison
    from mimokit.analysis.comparison import compare as compare
    from mimokit.analysis.explanation import Explanation as Explanation
    from mimokit.analysis.explanation import explain as explain
    from mimokit.analysis.findings import Finding as Finding
    from mimokit.analysis.many_runs import loss_over_tokens as loss_over_tokens
    from mimokit.analysis.many_runs import scaling_table as scaling_table
    from mimokit.analysis.many_runs import time_parts as time_parts
    from mimokit.analysis.run_folders import RunFolderError as RunFolderError
    from mimokit.analysis.run_folders import RunProblem as RunProblem
    from mimokit.analysis.run_folders import RunTables as RunTables
    from mimokit.analysis.run_folders import read_run as read_run
    from mimokit.analysis.runs import Runs as Runs
    from mimokit.analysis.runs import load_runs as load_runs
    from mimokit.analysis.step_figures import rank_work as rank_work
    from mimokit.analysis.steps import module_names as module_names
    from mimokit.analysis.steps import per_iteration as per_iteration
    from mimokit.analysis.steps import phase_times as phase_times
    from mimokit.analysis.steps import samples_to_evaluations as samples_to_evaluations
    from mimokit.analysis.steps import samples_to_steps as samples_to_steps
    from mimokit.analysis.steps import summarize as summarize
    from mimokit.analysis.steps import without_warmup as without_warmup
    from mimokit.analysis.trace import TraceFileError as TraceFileError
    from mimokit.analysis.trace import read_trace as read_trace
    from mimokit.analysis.trace import write_trace as write_trace
    from mimokit.analysis.trace_times import bubbles as bubbles
    from mimokit.analysis.trace_times import planned_steps as planned_steps
    from mimokit.analysis.trace_times import simulate_as_measured as simulate_as_measured
    from mimokit.analysis.trace_times import traced_iteration as traced_iteration
    from mimokit.analysis.two_runs import RunDifference as RunDifference
    from mimokit.analysis.two_runs import difference_of_runs as difference_of_runs
    from mimokit.extras.strategies.fits.folder import FitFolder as FitFolder
    from mimokit.extras.strategies.fits.folder import bytes_of_fits as bytes_of_fits
    from mimokit.extras.strategies.fits.folder import drift_of_fits as drift_of_fits
    from mimokit.extras.strategies.fits.folder import read_fit as read_fit
    from mimokit.extras.strategies.fits.folder import validation_of_fits as validation_of_fits
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
