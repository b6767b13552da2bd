"""The precisions that runs do not have: those of hardware that is not at hand."""

from __future__ import annotations

from mimokit.config.errors import Problem, refuse_if_any
from mimokit.config.experiment import ExperimentConfig
from mimokit.config.messages import problem_at
from mimokit.config.runtime import BLOCK_SCALED, RUNNABLE_PRECISIONS, TF32


def check_runnable(config: ExperimentConfig) -> None:
    """Reject what a plan accepts and runs do not have: a precision of other hardware."""
    refuse_if_any(unrunnable(config))


def unrunnable(config: ExperimentConfig) -> tuple[Problem, ...]:
    """Return the problems with which `check_runnable` rejects a config."""
    value = config.runtime.precision
    if value in (None, TF32, *RUNNABLE_PRECISIONS):
        return ()
    blocks = "needs GPUs of compute capability 10.0 or more (Blackwell)"
    why = blocks if value in BLOCK_SCALED else "runs do not know"
    sentence = (
        f"precision is {value}, which {why}; choose {', '.join(RUNNABLE_PRECISIONS)}, or leave it "
        "out to run in fp32."
    )
    return (problem_at("runtime.precision", value, sentence, None),)
