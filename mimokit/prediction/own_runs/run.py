"""One run of a user: what ran, and how long a step took."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mimokit.prediction.prediction import predict_task
from mimokit.prediction.result import Prediction
from mimokit.prediction.step_time import Software
from mimokit.prediction.task import PredictionTask


@dataclass(frozen=True)
class OwnRun:
    """A run that constants are adjusted to.

    Attributes:
        label: where it is from, such as "runs.csv, line 3".
        seconds: of a step.
        memory_gib: of the fullest rank; None: not measured.
    """

    label: str
    task: PredictionTask
    seconds: float
    memory_gib: float | None = None

    def predicted(self, software: Software) -> float:
        """Return the seconds that a training stack predicts."""
        return self.prediction(software).seconds

    def prediction(self, software: Software) -> Prediction:
        """Return what a training stack predicts."""
        system = replace(self.task.system, software=software)
        return predict_task(replace(self.task, system=system))

    @property
    def layout_key(self) -> object:
        """What runs of one layout share: all of its sizes, and what a step computes."""
        work, layout = self.task.workload, self.task.layout
        samples = (work.seq_length, work.global_batch_size, work.precision, str(work.recipe))
        order = (work.encoder_microbatches, work.pipeline_order, work.frozen)
        sizes = (layout.mode, layout.encoder_microbatches, *layout.modules.items())
        return (self.task.model.name, *sizes, *samples, *order)
