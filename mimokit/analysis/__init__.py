"""Samples and results folders as pandas tables."""

from mimokit.analysis.folder import RunFolderError, RunTables, read_run
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
    "RunFolderError",
    "RunTables",
    "TraceFileError",
    "bubbles",
    "module_names",
    "per_iteration",
    "phase_times",
    "planned_steps",
    "predicted_steps",
    "read_run",
    "read_trace",
    "samples_to_evaluations",
    "samples_to_steps",
    "samples_to_trace",
    "simulate_as_measured",
    "summarize",
    "traced_iteration",
    "without_warmup",
    "write_trace",
]
