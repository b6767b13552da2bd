"""The runtime section agrees with itself and with the model."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.errors import Problem
from mimokit.config.rules.context import ValidationContext
from mimokit.config.runtime import MODE_OF_SCHEDULE, SCHEDULE_OF_MODE


def runtime_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield what is wrong about schedule and profiling."""
    runtime = context.runtime
    if runtime is None:
        return
    schedule, mode = runtime.pipeline_schedule, context.model.deployment_mode
    readable = context.is_valid("runtime.pipeline_schedule", "model.deployment_mode")
    if readable and schedule is not None and MODE_OF_SCHEDULE[schedule] != mode:
        right = SCHEDULE_OF_MODE[mode]
        yield Problem(
            "runtime",
            "pipeline_schedule",
            schedule,
            f"Section 'runtime': pipeline_schedule is '{schedule}', but model.deployment_mode is "
            f"'{mode}', which goes with '{right}'; change one of the two.",
            {"path": "runtime.pipeline_schedule", "value": right},
        )
    start, end = runtime.profile_start_step, runtime.profile_end_step
    steps_are_valid = context.is_valid("runtime.profile_start_step", "runtime.profile_end_step")
    if runtime.enable_profiling and start >= end and steps_are_valid:
        yield Problem(
            "runtime",
            "profile_end_step",
            end,
            f"Section 'runtime': profile_end_step is {end}, but profiling begins at step {start} "
            f"(profile_start_step); make it greater than {start}.",
            {"path": "runtime.profile_end_step", "value": start + 1},
        )
