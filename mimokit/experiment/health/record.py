"""Keeps what the ranks of a run say about their health while it goes on."""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import replace
from functools import cached_property

from mimokit.config import ExperimentConfig
from mimokit.config.user_code import NO_CODE, UserCode
from mimokit.experiment.health.measures import RecentSteps, RunMeasures
from mimokit.experiment.health.rank_faults import Planned
from mimokit.experiment.health.report import RunHealth
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.tensor_collectives import may_lack_items, tensor_collectives
from mimokit.samples import HealthSample, Sample, StepSample


class HealthRecord:
    """What is needed of a run's samples to judge its health; one thread takes them.

    Args:
        config: finalized.
        code: of the user; the collectives of the user's modules are not known.
        own_data: the data is the user's, of which micro-batches may lack items.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        plan: LayoutPlan,
        code: UserCode = NO_CODE,
        own_data: bool = False,
    ) -> None:
        self._config, self._plan, self._code = config, plan, code
        self._own_data = own_data
        self._heard: list[HealthSample] = []
        self._steps = RecentSteps()
        self._judged = 0, RunHealth((), ())
        self._lost: str | None = None

    def take(self, sample: Sample) -> None:
        """Keep a sample, if health depends on it; warn of the first loss that is not finite."""
        if isinstance(sample, HealthSample):
            self._heard.append(sample)
        elif isinstance(sample, StepSample):
            self._steps.take(sample)
            self._look_at_loss(sample)

    def _look_at_loss(self, sample: StepSample) -> None:
        if self._lost is not None or sample.loss is None or math.isfinite(sample.loss):
            return
        rate = self._config.inner_runtime.learning_rate
        self._lost = (
            f"The loss of iteration {sample.iteration} is {sample.loss}; look at the samples of "
            f"that iteration, or lower runtime.learning_rate (it is {rate:g})."
        )
        warnings.warn(f"Run {self._config.name!r}: {self._lost}", stacklevel=2)

    def health(self, hardware: str | os.PathLike[str] | None = None) -> RunHealth:
        """Return the health that the samples so far show.

        Args:
            hardware: a hardware file or name; by default that of the config.

        Raises:
            ConfigError: the hardware is unknown.
        """
        heard = len(self._heard)
        if self._judged[0] != heard:
            self._judged = heard, RunHealth.of(self._heard[:heard], self._plan, self._planned)
        latency = self._latency if hardware is None else load_hardware(hardware).domain.latency
        measures = RunMeasures.of(self._steps.all(), self._plan, latency)
        return replace(self._judged[1], measures=measures, lost=self._lost)

    @cached_property
    def _latency(self) -> float | None:
        source = self._config.runtime.hardware
        return None if source is None else load_hardware(source).domain.latency

    @cached_property
    def _planned(self) -> Planned:
        """The collectives of ranks without a module of the user."""
        config, layout = self._config, self._plan.of_replica(0)
        code = self._code.completed(config.runtime)
        if code.forward_step is not None:
            return {}
        networks = config.model.module_architectures
        own = {name for name, network in networks.items() if code.builder_of(name, network)}
        lacking = may_lack_items(config)
        if self._own_data:
            lacking = frozenset(config.model.encoder_module_names)
        found = {}
        for rank in range(self._plan.world_size):
            place = rank % layout.world_size
            if not any(place in layout.modules[name].ranks for name in own):
                found[rank] = tensor_collectives(config, layout, place, lacking)
        return found
