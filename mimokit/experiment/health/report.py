"""The health of a training run: what its ranks hold, their random states, collectives and times."""

from __future__ import annotations

import math
import os
import warnings
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from mimokit.cluster.errors import RankDied
from mimokit.config import ExperimentConfig
from mimokit.config.user_code import NO_CODE, UserCode
from mimokit.experiment.health.measures import LAST, NOT_MEASURED, RankMeasures, RunMeasures
from mimokit.experiment.health.module_memory import (
    HeldMemory,
    Predicted,
    held_memory,
    predicted_memory,
)
from mimokit.experiment.health.rank_faults import (
    Planned,
    RankDifference,
    not_finite,
    rank_differences,
    rank_faults,
)
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.tensor_collectives import CollectiveSpan, may_lack_items, tensor_collectives
from mimokit.samples import HealthSample, Sample, StepSample
from mimokit.tables import Report, Section
from mimokit.units import bytes_text, parts_text, seconds_text, span_text

MOST_SENTENCES = 4
COLUMNS = (
    "rank", "after iteration", "parameters", "differ from a lower rank", "not finite",
    "random state", "collectives", "private memory", "peak", "waiting", "communication", "step",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class RunHealth(Report):
    """What the ranks of a run said about themselves.

    Whether the layout computes the model, `verify` says.

    Attributes:
        ranks: what each said after the first iteration with something wrong, else after the last.
        lost: a sentence about the first loss that is not finite.
        predicted: memory of each module; empty if it is not predicted.
    """

    ranks: tuple[HealthSample, ...]
    differences: tuple[RankDifference, ...]
    faults: tuple[str, ...] = ()
    planned: Planned = field(default_factory=dict)
    measures: RunMeasures = field(default_factory=RunMeasures)
    unplanned: tuple[int, ...] = ()
    lost: str | None = None
    predicted: Predicted = field(default_factory=dict)

    @classmethod
    def of(
        cls, samples: Iterable[HealthSample], plan: LayoutPlan, planned: Planned | None = None
    ) -> RunHealth:
        """Return the health that samples show.

        Args:
            plan: of the run: ranks of different replicas of a layout may differ.
            planned: collectives of the ranks without a module of the user; None: not known.
        """
        iterations: dict[int, dict[int, HealthSample]] = {}
        for sample in samples:
            iterations.setdefault(sample.iteration, {})[sample.rank] = sample
        together = plan.of_replica(0).world_size
        health = cls((), ())
        for _, by_rank in sorted(iterations.items()):
            ranks = tuple(sample for _, sample in sorted(by_rank.items()))
            digests = {sample.rank: sample.digests for sample in ranks}
            different = tuple(rank_differences(digests, together))
            health = cls(ranks, different, rank_faults(ranks, plan, planned))
            if not health.healthy:
                break
        if planned is None:
            return health
        counted = (sample.rank for sample in health.ranks if any(sample.collectives.values()))
        unplanned = tuple(rank for rank in counted if rank not in planned)
        return replace(health, planned=planned, unplanned=unplanned)

    @property
    def wrong(self) -> tuple[str, ...]:
        """A sentence for each thing that is wrong; for the last ones together if there are many."""
        when = f" after iteration {self.ranks[0].iteration}" if self.ranks else ""
        sentences = [
            *([] if self.lost is None else [self.lost]),
            *not_finite(self.ranks, when),
            *(difference.sentence(when) for difference in self.differences),
            *self.faults,
        ]
        more = len(sentences) - MOST_SENTENCES
        return (*sentences[:MOST_SENTENCES], *([f"And {more:,} more."] if more > 0 else []))

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what differs between ranks, and need not be wrong."""
        measured = bool(self.measures.ranks) or not self.ranks
        of_ranks = self.measures.notes if measured else (NOT_MEASURED,)
        return (*self._unplanned(), *of_ranks, *map(str, self.held))

    @cached_property
    def held(self) -> tuple[HeldMemory, ...]:
        """What modules held, and what was predicted of it."""
        return tuple(held_memory(self.ranks, self.predicted))

    def _unplanned(self) -> Iterator[str]:
        if self.unplanned:
            many = "s" if len(self.unplanned) > 1 else ""
            yield (
                f"No collectives are planned for rank{many} {span_text(self.unplanned)}, where a "
                "module or a forward step of the user runs; those that were counted are compared "
                "with nothing."
            )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "healthy": self.healthy,
            "wrong": list(self.wrong),
            "notes": list(self.notes),
            "ranks": [self._of_rank(sample) for sample in self.ranks],
            "held": [asdict(memory) for memory in self.held],
        }

    def for_file(self) -> dict[str, Any]:
        """Return plain data without the digests, which are as many as there are tensors."""
        content = self.to_json()
        for rank in content["ranks"]:
            del rank["digests"]
        return content

    def section(self) -> Section:
        """Return a row per rank, and below them what is wrong."""
        sentences = (*(self.wrong or ("Nothing is wrong.",)), *self.notes)
        if not (self.ranks or self.lost):
            sentences = ("No rank has finished an iteration.",)
        return Section("Health of the ranks", COLUMNS, self._rows(), sentences)

    @cached_property
    def _measured(self) -> dict[int, RankMeasures]:
        return {measures.rank: measures for measures in self.measures.ranks}

    def _of_rank(self, sample: HealthSample) -> dict[str, Any]:
        planned, measured = self.planned.get(sample.rank), self._measured.get(sample.rank)
        return {
            **asdict(sample),
            "planned_collectives": None
            if planned is None
            else {module: asdict(span) for module, span in planned.items()},
            "measured": None if measured is None else asdict(measured),
        }

    def _rows(self) -> list[list[str]]:
        others = {difference.ranks[1]: difference.names for difference in self.differences}
        return [
            [
                str(sample.rank), str(sample.iteration), f"{len(sample.digests):,}",
                f"{len(others.get(sample.rank, ())):,}", f"{len(sample.not_finite):,}",
                f"{sample.random_state:08x}", self._collectives(sample),
                *_cells(self._measured.get(sample.rank)),
            ]
            for sample in self.ranks
        ]  # fmt: skip

    def _collectives(self, sample: HealthSample) -> str:
        planned = self.planned.get(sample.rank)
        counted = f"{sum(sample.collectives.values()):,}"
        if planned is None:
            return f"{counted}, none planned" if sample.rank in self.unplanned else counted
        return f"{counted} of {sum(planned.values(), CollectiveSpan(0, 0))}"


def _cells(measures: RankMeasures | None) -> tuple[str, ...]:
    if measures is None:
        return ("-",) * 5
    times = measures.waiting, measures.communication, measures.step
    return bytes_text(measures.memory), bytes_text(measures.peak), *map(seconds_text, times)


class HealthRecord:
    """What is needed of a run's samples to judge its health; one thread takes them.

    Args:
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
        self._steps: dict[int, deque[StepSample]] = defaultdict(partial(deque, maxlen=LAST))
        self._judged = 0, RunHealth((), ())
        self._lost: str | None = None

    def take(self, sample: Sample) -> None:
        """Keep a sample, if health depends on it; warn of the first loss that is not finite."""
        if isinstance(sample, HealthSample):
            self._heard.append(sample)
        elif isinstance(sample, StepSample):
            self._steps[sample.rank].append(sample)
            self._look_at_loss(sample)

    def note_held(self, error: RankDied) -> None:
        """Add to an error what the rank held in the iteration in which that was measured."""
        told = [sample for sample in self._heard if sample.rank == error.rank and sample.held]
        for sample in told[-1:]:
            modules = [f"'{module}' {parts_text(parts)}" for module, parts in sample.held.items()]
            error.add_note(f"In iteration {sample.iteration} it held {'; '.join(modules)}.")

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
        # Copies, since another thread takes samples meanwhile.
        by_rank = sorted(self._steps.copy().items())
        recent = [step for _, steps in by_rank for step in steps.copy()]
        measures = RunMeasures.of(recent, self._plan, latency)
        judged = self._judged[1]
        predicted = self._predicted if any(sample.held for sample in judged.ranks) else {}
        return replace(judged, measures=measures, lost=self._lost, predicted=predicted)

    @cached_property
    def _predicted(self) -> Predicted:
        return predicted_memory(self._config)

    @cached_property
    def _latency(self) -> float | None:
        source = self._config.runtime.hardware
        return None if source is None else load_hardware(source).domain.latency

    @cached_property
    def _planned(self) -> Planned:
        config, layout = self._config, self._plan.of_replica(0)
        if (self._code.forward_step or config.runtime.forward_step) is not None:
            return {}
        networks = config.model.module_architectures
        of_user = {name for name, network in networks.items() if network.builder is not None}
        of_user |= set(self._code.modules)
        lacking = may_lack_items(config)
        if self._own_data:
            lacking = frozenset(config.model.encoder_module_names)
        planned = {}
        for rank in range(self._plan.world_size):
            place = rank % layout.world_size
            if not any(place in layout.modules[name].ranks for name in of_user):
                planned[rank] = tensor_collectives(config, layout, place, lacking)
        return planned
