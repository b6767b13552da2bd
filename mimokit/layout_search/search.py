"""Find the best of all layouts."""

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from mimokit.config.errors import Problem, refuse_if_any
from mimokit.layout_search.blocks import blocks
from mimokit.layout_search.combinations import parts_of
from mimokit.layout_search.constraints import (
    EVERY_MODULE,
    LANGUAGE,
    MODES,
    Constraints,
    Objective,
    check_objective,
    score,
)
from mimokit.layout_search.cost_tables import enumerate_modules, make_tables
from mimokit.layout_search.evaluate import Scan
from mimokit.layout_search.finalists import choose_finalists
from mimokit.layout_search.infeasible import nothing_fits
from mimokit.layout_search.result import SearchResult
from mimokit.layout_search.task import SearchTask
from mimokit.prediction import Prediction, Workload
from mimokit.prediction.model_source import ModelSource, load_source, resolve_source
from mimokit.prediction.step_time import Software
from mimokit.prediction.task import (
    HardwareSource,
    chosen_hardware,
    chosen_price,
    chosen_software,
    section_of,
)
from mimokit.prediction.validity import APART, check_links, check_positions, check_precision

FINALISTS = 32
"""Layouts whose pipelines are simulated, of those that the closed forms put first."""
BETWEEN_REPORTS = 0.05
"""Seconds between two reports of progress."""


@dataclass(frozen=True)
class SearchProgress:
    """How far a search is.

    Attributes:
        best: the lowest objective so far, or None.
    """

    share: float
    evaluated: int
    best: float | None


ProgressCallback = Callable[[SearchProgress], object]
CancelCheck = Callable[[], bool]


def search(
    model: ModelSource,
    *,
    gpus: int,
    gpu: HardwareSource | None = None,
    hardware: HardwareSource | None = None,
    objective: Objective = "step_time",
    constraints: Constraints | None = None,
    workload: Workload | None = None,
    software: str | Software | None = None,
    price_per_gpu_hour: float | None = None,
    finalists: int = FINALISTS,
    progress: ProgressCallback | None = None,
    cancelled: CancelCheck | None = None,
) -> SearchResult:
    """Evaluate every valid layout on at most `gpus` GPUs and return the best.

    All are evaluated with the closed forms; the pipelines of those that come first, and of the
    Pareto front, are simulated event by event, and the simulated time decides.

    Args:
        model: a model, a shipped model's name, a Hugging Face directory, or an experiment.
        gpus: how many there are; layouts may take fewer.
        gpu, hardware: one of them, a GPU's name, a hardware file, or a `Hardware`. None takes the
            GPU of the experiment's prediction section, or else the default of `PredictionConfig`.
        objective: what is minimised: `step_time`, `cost` (GPU-seconds of a step) or `memory`.
        workload: what one step computes; an experiment knows it.
        software: the training stack; None likewise.
        price_per_gpu_hour: in dollars, for the cost per million tokens; None likewise.
        progress: called with a `SearchProgress`, at most twenty times a second.
        cancelled: asked between blocks of layouts; when it says True the search ends with what it
            has, as with Ctrl-C.

    Raises:
        ConfigError: unknown names, no GPUs, or no layout fits (the sentence says what would).
    """
    began = time.perf_counter()
    task = task_of(
        model,
        gpus=gpus,
        gpu=gpu,
        hardware=hardware,
        objective=objective,
        constraints=constraints,
        workload=workload,
        software=software,
        price_per_gpu_hour=price_per_gpu_hour,
    )
    _check_numbers(gpus, finalists)
    language, encoders, cut = enumerate_modules(task)
    for sentence in cut:
        warnings.warn(sentence, stacklevel=2)
    scan = Scan(task, make_tables(task, language, encoders), keep=finalists)
    complete = _run(scan, progress, cancelled)
    dropped = all_dropped(scan)
    if not scan.fitting:
        raise nothing_fits(scan, dropped, complete)
    chosen = choose_finalists(scan, finalists)
    ordered = _sorted(task, chosen.finalists)
    best_of = {each.layout.mode: each for each in reversed(ordered)}
    return SearchResult(
        task=task,
        finalists=ordered,
        per_mode={mode: best_of[mode] for mode in MODES if mode in best_of},
        pareto=chosen.pareto,
        dropped=dict(dropped.most_common()),
        evaluated=scan.evaluated,
        fitting=scan.fitting,
        cut=cut,
        complete=complete,
        seconds=time.perf_counter() - began,
    )


def task_of(
    model: ModelSource,
    *,
    gpus: int,
    gpu: HardwareSource | None = None,
    hardware: HardwareSource | None = None,
    objective: Objective = "step_time",
    constraints: Constraints | None = None,
    workload: Workload | None = None,
    software: str | Software | None = None,
    price_per_gpu_hour: float | None = None,
) -> SearchTask:
    """Return what `search` is asked with these arguments."""
    source = load_source(model)
    known, work = resolve_source(source, workload)
    section = section_of(source)
    check_objective(objective)
    _check_numbers(gpus, 1)
    chosen = chosen_hardware(hardware, gpu, section)
    check_precision(chosen, work)
    check_links(chosen, gpus)
    check_positions(known, work)
    task = SearchTask(
        model=known,
        workload=work,
        gpus=gpus,
        hardware=chosen,
        software=chosen_software(software, section, chosen),
        objective=objective,
        constraints=constraints or Constraints(),
        price_per_gpu_hour=chosen_price(price_per_gpu_hour, section),
        parts=parts_of(source, work),
    )
    _check_names(task)
    _check_modes(task)
    return task


def _run(scan: Scan, progress: ProgressCallback | None, cancelled: CancelCheck | None) -> bool:
    plan = list(blocks(scan.task, scan.tables)) if scan.tables.language.count else []
    sizes = np.cumsum([0, *(block.layouts for block in plan)])
    reported = time.perf_counter()
    try:
        for number, block in enumerate(plan):
            if cancelled is not None and cancelled():
                return False
            scan.see(block)
            now = time.perf_counter()
            if progress is not None and now - reported >= BETWEEN_REPORTS:
                reported = now
                progress(_progress(scan, sizes[number + 1] / sizes[-1]))
    except KeyboardInterrupt:
        return False
    if progress is not None:
        progress(_progress(scan, 1.0))
    return True


def all_dropped(scan: Scan) -> Counter[str]:
    """Return how many sizes of every module and how many layouts were dropped, by reason."""
    dropped = Counter(scan.dropped)
    for module in (scan.tables.language, *scan.tables.others):
        for reason, count in module.dropped.items():
            dropped[f"{module.facts.name}: {reason}"] += count
    return +dropped


def _progress(scan: Scan, share: float) -> SearchProgress:
    return SearchProgress(float(share), scan.evaluated, scan.best)


def _sorted(task: SearchTask, predictions: Iterable[Prediction]) -> tuple[Prediction, ...]:
    def key(prediction: Prediction) -> tuple[float, float, int]:
        value = score(
            task.objective, prediction.seconds, prediction.peak_memory, prediction.layout.gpus
        )
        return float(value), prediction.peak_memory, prediction.layout.gpus

    return tuple(sorted(predictions, key=key))


def _check_numbers(gpus: object, finalists: object) -> None:
    refuse_if_any(
        Problem(
            "search",
            name,
            value,
            f"Search: {name} is {value}; it must be a whole number of at least 1.",
        )
        for name, value in (("gpus", gpus), ("finalists", finalists))
        if not isinstance(value, int) or isinstance(value, bool) or value < 1
    )


def _check_modes(task: SearchTask) -> None:
    if not task.modes:
        modes = ", ".join(task.constraints.modes)
        sentence = f"Constraints: {APART}, and modes are {modes}; add heterogeneous."
        refuse_if_any([Problem("constraints", "modes", modes, sentence)])


def _check_names(task: SearchTask) -> None:
    names = [task.language.name, *(module.name for module in task.others)]
    refuse_if_any(
        Problem(
            "constraints",
            "sizes",
            name,
            f"Constraints: sizes names the module '{name}'; the modules are {', '.join(names)}, "
            "'language' is the language model, and '*' every one.",
        )
        for name in task.constraints.sizes
        if name not in (*names, LANGUAGE, EVERY_MODULE)
    )
