"""Samples and results folders as pandas tables, compared and explained."""

from mimokit.analysis.comparison import Comparison, compare
from mimokit.analysis.explanation import Explanation, explain
from mimokit.analysis.findings import Finding
from mimokit.analysis.fits import (
    FitFolder,
    bytes_of_fits,
    drift_of_fits,
    read_fit,
    validation_of_fits,
)
from mimokit.analysis.folder import RunFolderError, RunTables, read_run
from mimokit.analysis.many_runs import loss_over_tokens, scaling_table, time_parts
from mimokit.analysis.planned import planned_against_measured
from mimokit.analysis.run_folders import RunProblem
from mimokit.analysis.runs import Runs, load_runs
from mimokit.analysis.step_figures import rank_work
from mimokit.analysis.steps import (
    module_names,
    per_iteration,
    phase_times,
    samples_to_evaluations,
    samples_to_steps,
    summarize,
    without_warmup,
)
from mimokit.analysis.trace import (
    TraceFileError,
    read_trace,
    samples_to_trace,
    write_trace,
)
from mimokit.analysis.trace_times import (
    bubbles,
    planned_steps,
    predicted_steps,
    simulate_as_measured,
    traced_iteration,
)

__all__ = [
    "Comparison",
    "Explanation",
    "Finding",
    "FitFolder",
    "RunFolderError",
    "RunProblem",
    "RunTables",
    "Runs",
    "TraceFileError",
    "bubbles",
    "bytes_of_fits",
    "compare",
    "drift_of_fits",
    "explain",
    "load_runs",
    "loss_over_tokens",
    "module_names",
    "per_iteration",
    "phase_times",
    "planned_against_measured",
    "planned_steps",
    "predicted_steps",
    "rank_work",
    "read_fit",
    "read_run",
    "read_trace",
    "samples_to_evaluations",
    "samples_to_steps",
    "samples_to_trace",
    "scaling_table",
    "simulate_as_measured",
    "summarize",
    "time_parts",
    "traced_iteration",
    "validation_of_fits",
    "without_warmup",
    "write_trace",
]
