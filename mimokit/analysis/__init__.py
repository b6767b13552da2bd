"""What happened: from samples and results folders to pandas tables."""

from mimokit.analysis.folder import RunFolderError, RunTables, read_run
from mimokit.analysis.phases import (
    COMMUNICATION,
    PHASE_COLUMNS,
    REMAINDER,
    module_names,
    phase_times,
)
from mimokit.analysis.samples import samples_to_evaluations, samples_to_steps
from mimokit.analysis.summary import per_iteration, summarize, without_warmup

__all__ = [
    "COMMUNICATION",
    "PHASE_COLUMNS",
    "REMAINDER",
    "RunFolderError",
    "RunTables",
    "module_names",
    "per_iteration",
    "phase_times",
    "read_run",
    "samples_to_evaluations",
    "samples_to_steps",
    "summarize",
    "without_warmup",
]
