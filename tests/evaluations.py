"""The held-out samples of runs of which a test looks at something else."""

from mimokit.config.runtime import Evaluations

QUICK = Evaluations(samples=8, final_samples=8)
"""By default a run ends with 1,024, which take a model of a test longer than its steps."""
