"""Predict a training step of mimokit's own engine on ranks that share the cores of a machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mimokit.config import ExperimentConfig
from mimokit.planning.layout import plan_layout
from mimokit.prediction.local_cpu.cost_model import SharedCosts
from mimokit.prediction.local_cpu.programs import rank_programs
from mimokit.prediction.local_cpu.simulator import Program, RankSpan, Span, run_shared
from mimokit.prediction.local_cpu.step_costs import step_costs
from mimokit.step_kinds import MODULE_PHASES, REMAINDER, Phase, StepKind

_PHASES = {str(kind): kind.phase for kind in StepKind}


@dataclass(frozen=True)
class SharedPrediction:
    """One predicted step on shared cores.

    Attributes:
        seconds: of the step.
        cores: number of cores that the ranks share.
        critical_path: seconds if each rank had a separate core.
        parts: CPU seconds of all ranks, by module and kind of step.
        spans: what each rank does, and when.
    """

    name: str
    seconds: float
    cores: float
    cpu_seconds: tuple[float, ...]
    critical_path: float
    parts: Mapping[Span, float]
    spans: tuple[RankSpan, ...]

    @property
    def bound(self) -> float:
        """Lower bound of the step: the larger of critical path and CPU seconds per core."""
        return max(self.critical_path, sum(self.cpu_seconds) / self.cores)

    def phases(self) -> dict[tuple[str, str], float]:
        """Return (module, phase) -> seconds of a step, including waits, mean over the ranks.

        The phases are those of `mimokit.analysis.phase_times`. The module is "" for a phase that
        belongs to no module.
        """
        ranks = len(self.cpu_seconds)
        found: dict[tuple[str, str], float] = defaultdict(float)
        for span in self.spans:
            found[_phase(span.span)] += (span.stop - span.start) / ranks
        found["", REMAINDER] += self.seconds - sum(found.values())
        return dict(found)


def _phase(span: Span) -> tuple[str, str]:
    phase = _PHASES[span.kind]
    if phase in MODULE_PHASES:
        return span.module or "", phase
    return "", REMAINDER if phase == Phase.REPORT else phase


def predict_shared(
    config: ExperimentConfig,
    costs: SharedCosts,
    cores: float,
    items_per_sample: Mapping[str, float] | None = None,
) -> SharedPrediction:
    """Predict the step of a layout whose ranks are all on one machine.

    Args:
        costs: from `calibrate`.
        cores: CPU seconds per second of all ranks together: `Calibration.cores`.
        items_per_sample: encoder -> average number of items per sample; by default the maximum.

    Raises:
        ConfigError: the layout is wrong, or has parts that calibration does not measure.
        ValueError: there are no cores.
    """
    plan = plan_layout(config).of_replica(0)
    at_work = costs.at(plan.world_size)
    step = step_costs(config, plan, at_work, items_per_sample)
    programs = rank_programs(step)
    run = run_shared(programs, cores * at_work.busy)
    return SharedPrediction(
        name=config.name,
        seconds=run.seconds,
        cores=cores,
        cpu_seconds=run.cpu_seconds,
        critical_path=run_shared(programs, float(len(programs))).seconds,
        parts=_parts(programs),
        spans=run.spans,
    )


def _parts(programs: Sequence[Program]) -> dict[Span, float]:
    parts: dict[Span, float] = defaultdict(float)
    for program in programs:
        for operation in program:
            parts[operation.span] += operation.seconds
    return dict(parts)
