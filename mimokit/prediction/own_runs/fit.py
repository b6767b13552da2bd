"""Constants of a stack that fit own runs best, near those that ship and inside their bounds."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from mimokit.config.errors import ConfigError, Problem
from mimokit.prediction.own_runs.table import OwnRun
from mimokit.prediction.prediction import predict_task
from mimokit.prediction.step_time import Software
from mimokit.prediction.step_time.software import movable
from mimokit.prediction.task import PredictionTask
from mimokit.units import GIB, counted

NOISE, PRIOR = 0.03, 0.15
"""Relative standard deviations: of a run's seconds, by which one configuration differs between
releases; and of a constant around the one that ships."""
LEAST_EFFECT = 0.02
"""Change of the log of any run's seconds, per change of the log of a constant, below which runs
tell nothing of the constant."""
APART = 0.2
"""Share by which runs of one layout differ that contradict each other."""
STALLED = 2.0
"""Standard deviations from which on a run hardly counts: some stall for reasons of their day."""
STEP = 0.02
FEWEST = 2


@dataclass(frozen=True)
class Adjusted:
    """What own runs say.

    Attributes:
        software: the stack with its constants adjusted.
        base: name of the stack that it was.
        moved: constant -> its value before and after, of those that runs tell about.
        on_bounds: sentences about constants that end on a bound.
        before: run -> predicted over measured seconds, less 1, with the constants that ship.
        after: the same with the adjusted ones.
        left_out: the same with constants that were adjusted without the run.
        contradicting: pairs of runs of one layout whose seconds differ by more than `APART`.
        memory: run -> predicted over measured memory, less 1, of those that measured it.
    """

    software: Software
    base: str
    moved: Mapping[str, tuple[float, float]]
    on_bounds: tuple[str, ...]
    before: Mapping[str, float]
    after: Mapping[str, float]
    left_out: Mapping[str, float]
    contradicting: tuple[tuple[str, str], ...]
    memory: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [
            f"{name}: {old:.4g} becomes {new:.4g} ({new / old - 1:+.1%})"
            for name, (old, new) in self.moved.items()
        ]
        lines += self.on_bounds
        for what, errors in (
            ("as shipped", self.before),
            ("adjusted", self.after),
            ("each run left out", self.left_out),
        ):
            lines.append(f"mean error, {what}: {mean_error(errors):.1%}")
        if mean_error(self.left_out) >= mean_error(self.before):
            lines.append(
                "the runs teach nothing about another run: its error, predicted from the others, "
                "is no smaller than as shipped"
            )
        if self.memory:
            worst = max(self.memory, key=lambda label: abs(self.memory[label]))
            lines.append(
                f"mean error of memory, to which nothing is fitted: {mean_error(self.memory):.1%} "
                f"of {counted(len(self.memory), 'run')}, most {self.memory[worst]:+.1%} of {worst}"
            )
        lines += [f"{run} and {other} contradict each other" for run, other in self.contradicting]
        return "\n".join(lines)


def mean_error(errors: Mapping[str, float]) -> float:
    """Return the mean absolute error."""
    return float(np.mean(np.abs(list(errors.values()))))


def adjust(runs: Sequence[OwnRun], software: Software) -> Adjusted:
    """Return the constants that fit runs best.

    Raises:
        ConfigError: there is a single run, or they are of several GPUs.
    """
    _check(runs)
    gpu = runs[0].task.system.hardware.name
    adjusted = replace(fitted(runs, software, gpu), gpu=gpu)
    told = _told(runs, software, gpu)
    moved = {
        name: (getattr(software, name), getattr(adjusted, name))
        for name in told
        if not math.isclose(getattr(software, name), getattr(adjusted, name), rel_tol=1e-3)
    }
    bounds = movable(gpu, software)
    on_bounds = tuple(
        f"{name} ends on its bound {bound:.4g}: something is missing here, which it stands for"
        for name in moved
        for bound in bounds[name]
        if math.isclose(getattr(adjusted, name), bound, rel_tol=5e-3)
    )
    left_out = {
        run.label: _error(run, fitted([other for other in runs if other is not run], software, gpu))
        for run in runs
    }
    return Adjusted(
        software=adjusted,
        base=software.name,
        moved=moved,
        on_bounds=on_bounds,
        before={run.label: _error(run, software) for run in runs},
        after={run.label: _error(run, adjusted) for run in runs},
        left_out=left_out,
        contradicting=contradicting_runs(runs),
        memory={
            run.label: run.prediction(adjusted).peak_memory / GIB / run.memory_gib - 1
            for run in runs
            if run.memory_gib
        },
    )


def contradicting_runs(runs: Sequence[OwnRun]) -> tuple[tuple[str, str], ...]:
    """Return pairs of runs of one layout whose seconds differ too much."""
    groups: dict[object, list[OwnRun]] = defaultdict(list)
    for run in runs:
        groups[run.layout_key].append(run)
    return tuple(
        (first.label, other.label)
        for group in groups.values()
        for first, other in combinations(group, 2)
        if abs(math.log(first.seconds / other.seconds)) > math.log1p(APART)
    )


def _check(runs: Sequence[OwnRun]) -> None:
    gpus = sorted({run.task.system.hardware.name for run in runs})
    if len(runs) < FEWEST:
        sentence = (
            f"Calibration from runs: there {'is' if len(runs) == 1 else 'are'} "
            f"{counted(len(runs), 'run')}, and at least {FEWEST} are needed, "
            "so that each can be predicted from the others; add runs of other layouts."
        )
    elif len(gpus) > 1:
        sentence = (
            f"Calibration from runs: they are of {' and '.join(gpus)}; give the runs of one GPU."
        )
    elif len({str(run.layout_key) for run in runs}) == 1:
        sentence = (
            f"Calibration from runs: the {len(runs)} runs are of one layout, which tells nothing "
            "of others; add runs of other layouts (`SearchResult.telling` names some)."
        )
    else:
        return
    raise ConfigError([Problem("calibration", "runs", len(runs), sentence)])


def _error(run: OwnRun, software: Software) -> float:
    return run.predicted(software) / run.seconds - 1


def _told(runs: Sequence[OwnRun], software: Software, gpu: str) -> list[str]:
    """Return the constants that change the seconds of any run."""
    names = [name for name in movable(gpu, software) if getattr(software, name) > 0]
    base = _logs(runs, software)
    return [
        name for name in names if np.max(np.abs(_slope(runs, software, name, base))) > LEAST_EFFECT
    ]


def fitted(runs: Sequence[OwnRun], software: Software, gpu: str) -> Software:
    """Return the constants with the greatest posterior probability, expanded to first order."""
    from scipy.optimize import least_squares  # half a second to import

    if not (names := _told(runs, software, gpu)):
        return software
    bounds = movable(gpu, software)
    low, high = (np.log([bounds[name][side] for name in names]) for side in (0, 1))
    measured = np.log([run.seconds for run in runs])
    start = np.clip(np.log([getattr(software, name) for name in names]), low, high)
    best_stack = software
    for _ in range(3):
        at = np.clip(np.log([getattr(best_stack, name) for name in names]), low, high)
        base = _logs(runs, best_stack)
        slopes = np.stack([_slope(runs, best_stack, name, base) for name in names], axis=1)

        def residuals(
            values: NDArray[np.float64],
            at: NDArray[np.float64] = at,
            base: NDArray[np.float64] = base,
            slopes: NDArray[np.float64] = slopes,
        ) -> NDArray[np.float64]:
            missed = (base + slopes @ (values - at) - measured) / NOISE
            return np.concatenate([missed, (values - start) / PRIOR])

        inside = np.clip(at, low + 1e-9, high - 1e-9)
        best = least_squares(
            residuals, inside, bounds=(low, high), loss="cauchy", f_scale=STALLED
        ).x
        best_stack = replace(best_stack, **dict(zip(names, np.exp(best).tolist(), strict=True)))
    return best_stack


def _logs(runs: Sequence[OwnRun], software: Software) -> NDArray[np.float64]:
    return np.log([run.predicted(software) for run in runs])


def _slope(
    runs: Sequence[OwnRun], software: Software, name: str, base: NDArray[np.float64]
) -> NDArray[np.float64]:
    changed = replace(software, **{name: getattr(software, name) * math.exp(STEP)})
    slope: NDArray[np.float64] = (_logs(runs, changed) - base) / STEP
    return slope


def most_telling(tasks: Sequence[PredictionTask], count: int = 3) -> tuple[int, ...]:
    """Return the places of the layouts whose runs would teach most, the most telling first.

    They shrink the volume of what runs leave possible of the constants most (D-optimal design,
    chosen one after the other): each adds the direction in which the others say least.
    """
    if not tasks:
        return ()
    slopes = np.stack([_slopes(task) for task in tasks]) / NOISE
    information = np.eye(slopes.shape[1]) / PRIOR**2
    chosen: list[int] = []
    for _ in range(min(count, len(tasks))):
        spread = np.einsum("ij,jk,ik->i", slopes, np.linalg.inv(information), slopes)
        spread[chosen] = -1.0
        best = int(spread.argmax())
        chosen.append(best)
        information += np.outer(slopes[best], slopes[best])
    return tuple(chosen)


def _slopes(task: PredictionTask) -> np.ndarray:
    """Return the change of the log of a layout's seconds per change of the log of each constant."""
    software = task.system.software
    base = _log_seconds(task, software)
    slopes = []
    for name in movable(task.system.hardware.name, software):
        value = getattr(software, name)
        moved = replace(software, **{name: value * math.exp(STEP)})
        slopes.append((_log_seconds(task, moved) - base) / STEP if value else 0.0)
    return np.array(slopes)


def _log_seconds(task: PredictionTask, software: Software) -> float:
    system = replace(task.system, software=software)
    return math.log(predict_task(replace(task, system=system)).seconds)
