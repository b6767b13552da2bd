"""Imports what tests let ranks import, in the process from which the engines are forked.

Eight ranks would import each of it eight times, and every full garbage collection of a rank, of
which each run has three, would look at all of it: 43 ms after `transformers` instead of 5 ms. A
rank that calls a function of a test's module imports what that module imports.
"""

from importlib import import_module

for name in (
    "mimokit.engine.preload",
    "mimokit.experiment.proofs_on_rank",
    "mimokit.extras.generation.check.on_rank",
    "mimokit.extras.generation.on_ranks",
    "mimokit.experiment.culprit.explain",
    "mimokit.experiment.resume_proof",
    "mimokit.experiment.stepper",
    "mimokit.experiment.training",
    "mimokit.experiment.verification",
    "mimokit.interop",
    "tests.planted",
    "tests.whole_runs",
    "hypothesis",
    "ipywidgets",
    "numba",
    "pandas",
    "pytest",
    "scipy.stats",
    "sklearn.datasets",
    "transformers.models.auto.modeling_auto",
    "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
    "transformers.models.qwen3_vl.modeling_qwen3_vl",
    "transformers.models.qwen3_5.modeling_qwen3_5",
):
    import_module(name)
