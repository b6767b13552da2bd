"""Predict a training step of mimokit's own engine on ranks that share the cores of a machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mimokit.config import ExperimentConfig
from mimokit.planning.layout import plan as make_plan
from mimokit.prediction.local_cpu.colocated import programs_together
from mimokit.prediction.local_cpu.cost_model import SharedCosts
from mimokit.prediction.local_cpu.heterogeneous import programs_apart
from mimokit.prediction.local_cpu.simulator import Program, Span, run_shared
from mimokit.prediction.local_cpu.step_costs import step_costs
from mimokit.step_kinds import MODULE_PHASES, RANK_PHASES, REMAINDER, Phase, StepKind

_PHASES = {str(kind): kind.phase for kind in StepKind}


@dataclass(frozen=True)
class SharedPrediction:
    """One step on shared cores.

    Attributes:
        name: of the config.
        seconds: of the step.
        cores: that the ranks share.
        cpu_seconds: of every rank.
        critical_path: seconds if every rank had a core of its own.
        parts: what the CPU seconds of all ranks go into.
        spans: what every rank does when.
    """

    name: str
    seconds: float
    cores: float
    cpu_seconds: tuple[float, ...]
    critical_path: float
    parts: Mapping[str, float]
    spans: tuple[Span, ...]

    @property
    def bound(self) -> float:
        """The larger of critical path and CPU seconds over cores: no step is quicker."""
        return max(self.critical_path, sum(self.cpu_seconds) / self.cores)

    def phases(self) -> dict[tuple[str, str], float]:
        """Return (module, phase) -> seconds of a step, waiting included, mean over the ranks.

        The phases are those of `mimokit.analysis.phase_times`; the module is "" where a phase
        belongs to none.
        """
        ranks = len(self.cpu_seconds)
        found: dict[tuple[str, str], float] = defaultdict(float)
        for span in self.spans:
            found[_phase(span.label)] += (span.stop - span.start) / ranks
        found["", "other"] += self.seconds - sum(found.values())
        return dict(found)


def _phase(label: str) -> tuple[str, str]:
    name, _, way = label.rpartition(" ")
    if way in MODULE_PHASES:
        return name, way
    phase = _PHASES.get(label, Phase.COMMUNICATION)
    return "", str(phase) if phase in RANK_PHASES else REMAINDER


def predict_shared(
    config: ExperimentConfig,
    costs: SharedCosts,
    cores: float,
    items_per_sample: Mapping[str, float] | None = None,
) -> SharedPrediction:
    """Predict the step of a layout whose ranks are all on one machine.

    Args:
        config: of the layout, finalized.
        costs: from `calibrate`.
        cores: CPU seconds per second that all ranks together get: `Calibration.cores`.
        items_per_sample: encoder -> items per sample, on average; by default the most that fit.

    Raises:
        ConfigError: the layout is wrong, or has parts whose cost no calibration knows.
        ValueError: no cores.
    """
    plan = make_plan(config)
    at_work = costs.at(plan.world_size)
    step = step_costs(config, plan, at_work, items_per_sample)
    apart = plan.deployment_mode == "heterogeneous"
    programs = programs_apart(step) if apart else programs_together(step)
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


def _parts(programs: Sequence[Program]) -> dict[str, float]:
    parts: dict[str, float] = defaultdict(float)
    for program in programs:
        for operation in program:
            parts[operation.label] += operation.seconds
    return dict(parts)
