"""One search: the model, the hardware and the objective."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from mimokit.architecture import Model
from mimokit.architecture.modules import EncoderBranch, LanguageModel
from mimokit.layout_search.constraints import Constraints, Objective
from mimokit.prediction import Layout, Prediction, Workload
from mimokit.prediction.hardware import Hardware
from mimokit.prediction.prediction import predict_task
from mimokit.prediction.step_time import Software, System
from mimokit.prediction.task import PredictionTask, system_of
from mimokit.prediction.workload import branches_of, language_of


@dataclass(frozen=True)
class SearchTask:
    """Everything that a search is asked.

    Attributes:
        gpus: how many there are; layouts may take fewer.
        price_per_gpu_hour: in dollars, or None.
    """

    model: Model
    workload: Workload
    gpus: int
    hardware: Hardware
    software: Software
    objective: Objective = "step_time"
    constraints: Constraints = field(default_factory=Constraints)
    price_per_gpu_hour: float | None = None

    @cached_property
    def system(self) -> System:
        """Hardware, software and precision of matrix products."""
        return system_of(self.hardware, self.software, self.workload)

    @property
    def language(self) -> LanguageModel:
        """The language model."""
        return language_of(self.model)

    @property
    def branches(self) -> tuple[EncoderBranch, ...]:
        """The encoders."""
        return branches_of(self.model)

    @property
    def memory_limit(self) -> float:
        """Bytes that may be planned on a GPU."""
        return self.hardware.memory_bytes * self.constraints.memory_share

    def predict(self, layout: Layout) -> Prediction:
        """Predict one layout, pipelines event by event."""
        return predict_task(
            PredictionTask(self.model, layout, self.workload, self.system, self.price_per_gpu_hour)
        )
