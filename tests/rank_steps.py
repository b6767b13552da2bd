"""What tests do on a rank: build the training state of a layout on digits, and run its steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mimokit.config import ExperimentConfig


@contextmanager
def state_of(plan: Any, config: ExperimentConfig) -> Iterator[Any]:
    """Prepare a `TrainingState`, and release its model at the end."""
    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.training.optimizer_step import prepared

    with prepared(RunOfRank(plan, config)) as state:
        yield state


def run_step(state: Any, observe: Callable[[Any], object] | None = None) -> Any:
    """Run an optimizer step and return its `StepResult`; `observe` sees the steps of the rank."""
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.optimizer_step import training_step

    return exhaust(training_step(state), observe)
