"""One search: the model, the hardware and the objective."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from mimokit.architecture import Model
from mimokit.architecture.modules import (
    DecoderHead,
    EncoderBranch,
    LanguageModel,
)
from mimokit.config.rules.combinations import Part
from mimokit.config.runtime import DeploymentMode
from mimokit.layout_search.constraints import Constraints, Objective
from mimokit.prediction import Layout, Prediction, Workload
from mimokit.prediction.hardware import Hardware
from mimokit.prediction.layout import micro_batches
from mimokit.prediction.prediction import predict_task
from mimokit.prediction.step_time import Software, System
from mimokit.prediction.task import PredictionTask, system_of
from mimokit.prediction.workload import branches_of, decoders_of, language_of, topology_of


@dataclass(frozen=True)
class SearchTask:
    """Everything that a search is asked.

    Attributes:
        gpus: how many there are; layouts may take fewer.
        parts: module -> what is refused with it; none: nothing is refused.
    """

    model: Model
    workload: Workload
    gpus: int
    hardware: Hardware
    software: Software
    objective: Objective = "step_time"
    constraints: Constraints = field(default_factory=Constraints)
    price_per_gpu_hour: float | None = None
    parts: Mapping[str, Part] = field(default_factory=dict)

    @cached_property
    def system(self) -> System:
        """Hardware, software and precision of matrix products."""
        return system_of(self.hardware, self.software, self.workload, self.model)

    @property
    def language(self) -> LanguageModel:
        """The language model."""
        return language_of(self.model)

    @property
    def branches(self) -> tuple[EncoderBranch, ...]:
        """The encoders."""
        return branches_of(self.model)

    @property
    def others(self) -> tuple[EncoderBranch | DecoderHead, ...]:
        """The modules beside the language model: encoders, then decoders."""
        return (*self.branches, *decoders_of(self.model))

    @cached_property
    def feeds(self) -> Mapping[str, tuple[str, ...]]:
        """Module -> the modules that it feeds, for every module."""
        return topology_of(self.model)

    @property
    def modes(self) -> tuple[DeploymentMode, ...]:
        """The modes to try: without other modules than a language model all are one."""
        if not self.others:
            return ("homogeneous",)
        fed = {name for targets in self.feeds.values() for name in targets}
        apart = fed - {self.language.name}
        chosen = self.constraints.modes
        return tuple(mode for mode in chosen if mode == "heterogeneous" or not apart)

    @property
    def memory_limit(self) -> float:
        """Bytes that may be planned on a GPU."""
        return self.hardware.memory_bytes * self.constraints.memory_share

    def predict(self, layout: Layout) -> Prediction:
        """Predict one layout, pipelines event by event.

        Colocated encoders compute for all micro-batches of a step at once, or, where that does not
        fit, in as few passes as do; a workload that says how many decides it.
        """
        prediction = self._predict(layout)
        if layout.mode != "colocated" or self.workload.encoder_microbatches is not None:
            return prediction
        count = micro_batches(layout, self.workload)
        for passes in passes_of(count):
            if prediction.peak_memory <= self.memory_limit:
                break
            at_once = math.ceil(count / passes)
            prediction = self._predict(replace(layout, encoder_microbatches=at_once))
        return prediction

    def _predict(self, layout: Layout) -> Prediction:
        return predict_task(self.prediction_task(layout))

    def prediction_task(self, layout: Layout) -> PredictionTask:
        """Return what a prediction of a layout depends on."""
        return PredictionTask(
            self.model, layout, self.workload, self.system, self.price_per_gpu_hour
        )


def passes_of(micro_batches: int) -> Iterator[int]:
    """Yield how many passes of encoders are tried beyond one: powers of 2, then one each."""
    passes = 2
    while passes < 2 * micro_batches:
        yield min(passes, micro_batches)
        passes *= 2
