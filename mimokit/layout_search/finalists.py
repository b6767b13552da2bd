"""Simulate the layouts that the closed forms put first."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mimokit.config.graph import topological_order
from mimokit.config.sizes import ParallelSizes
from mimokit.layout_search.constraints import MODES
from mimokit.layout_search.evaluate import Scan
from mimokit.layout_search.incumbents import PER_MODE
from mimokit.layout_search.pareto import Kept, front
from mimokit.layout_search.space import spread
from mimokit.prediction import Layout, Prediction
from mimokit.prediction.layout import connected

PARETO_POINTS = 40
"""Points of the front that are simulated; of a longer front an even choice."""


@dataclass(frozen=True)
class Finalists:
    """Layouts that were simulated.

    Attributes:
        finalists: those that the closed forms put first, overall and in every mode.
        pareto: the front of step time, memory and GPUs, fewest GPUs first.
    """

    finalists: tuple[Prediction, ...]
    pareto: tuple[Prediction, ...]


def choose_finalists(scan: Scan, count: int) -> Finalists:
    """Return predictions of the best layouts and of the Pareto front."""
    remembered = scan.kept
    order = np.lexsort((remembered.gpus, remembered.memory, remembered.score))
    first = _distinct(scan, remembered, order, count)
    for number in range(len(MODES)):
        of_mode = order[remembered.mode[order] == number]
        first += [row for row in _distinct(scan, remembered, of_mode, PER_MODE) if row not in first]
    edge = spread(
        tuple(int(r) for r in front(remembered.gpus, remembered.seconds, remembered.memory)),
        PARETO_POINTS,
    )
    rows = dict.fromkeys([*first, *edge])
    predictions = {row: scan.task.predict(layout_of(scan, remembered, row)) for row in rows}
    return Finalists(
        finalists=tuple(predictions[row] for row in first),
        pareto=_front([predictions[row] for row in rows]),
    )


def _distinct(scan: Scan, kept: Kept, order: NDArray[np.intp], count: int) -> list[int]:
    chosen: dict[str, int] = {}
    for row in order:
        layout = layout_of(scan, kept, int(row))
        plain = {name: replace(sizes, instances=1) for name, sizes in layout.modules.items()}
        chosen.setdefault(str(replace(layout, modules=plain)), int(row))
        if len(chosen) == count:
            break
    return list(chosen.values())


def layout_of(scan: Scan, kept: Kept, row: int) -> Layout:
    """Return a remembered layout."""
    chosen = tuple(int(candidate) for candidate in kept.others[row])
    return make_layout(scan, MODES[int(kept.mode[row])], int(kept.language[row]), chosen)


def make_layout(scan: Scan, mode: str, candidate: int, others: tuple[int, ...]) -> Layout:
    """Return the layout of a language candidate with candidates of the other modules."""
    tables = scan.tables
    language = tables.language.at(candidate)
    name = tables.language.facts.name
    placed: dict[str, ParallelSizes] = {name: language}
    for other, chosen in zip(tables.others, others, strict=True):
        if mode == "homogeneous":
            placed[other.facts.name] = language.in_first_stage
            continue
        sizes = other.at(chosen)
        samples = language.micro_batch * language.data
        placed[other.facts.name] = replace(sizes, micro_batch=samples // sizes.data)
    modules = {module: placed[module] for module in topological_order(scan.task.feeds)}
    return connected(Layout(mode, modules, name), scan.task.model)  # type: ignore[arg-type]


def _front(predictions: list[Prediction]) -> tuple[Prediction, ...]:
    gpus = np.array([prediction.layout.gpus for prediction in predictions], dtype=np.float64)
    seconds = np.array([prediction.seconds for prediction in predictions])
    memory = np.array([prediction.peak_memory for prediction in predictions])
    return tuple(predictions[index] for index in front(gpus, seconds, memory))
