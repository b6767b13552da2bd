"""What the predictor would choose among layouts that were tried, and which it says will fail.

Tables of tried layouts have the columns of `COLUMNS`; a row that failed has no seconds.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.prediction.tables import Row, names, number, table, whole
from mimokit.config.errors import ConfigError
from mimokit.config.sizes import ParallelSizes
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.layout import Layout
from mimokit.prediction.own_runs import OwnRun
from mimokit.prediction.own_runs.fit import fitted, most_telling
from mimokit.prediction.prediction import predict_task
from mimokit.prediction.step_time import Software, load_software
from mimokit.prediction.task import PredictionTask, system_of
from mimokit.prediction.workload import Workload
from tests import networks

COLUMNS = names(
    "model layers hidden heads ffn nodes gpus micro_batch micro_batches global_batch dp pp tp zero "
    "outcome seconds"
)
SEQUENCE, VOCABULARY = 4096, 131072
"""Of the Ultra-Scale Playbook, whose table this is."""
UNTIED = 10_000
"""Inner width from which on its models have an output layer of their own (`tie_word_embeddings` in
its `scaling_benchmarks.py`); that 1B is tied is what its peaks of memory say, too."""
GPU, STACK = "h100-efa", "nanotron"
LIKELY = 0.5
"""Probability of fitting below which a layout counts as refused."""
CANDIDATES = 24
"""Layouts predicted fastest among which own runs are chosen: one tries what one might use."""


@dataclass(frozen=True)
class Tried:
    """A layout that somebody tried.

    Attributes:
        seconds: of a step; None: it failed.
    """

    model: str
    nodes: int
    task: PredictionTask
    seconds: float | None


@dataclass(frozen=True)
class Foreseen:
    """What is predicted of a layout; infinite seconds and no chance where it is refused."""

    seconds: float
    chance: float


@dataclass(frozen=True)
class Choice:
    """How good predictions choose among the layouts of a model on as many nodes, in percent.

    Attributes:
        given: own runs that the constants were adjusted to; they are not judged.
        ten_fastest_percent: mean error of the seconds of the ten fastest layouts.
        loss_of_best_percent: by how much the layout predicted fastest takes longer than the fastest
            that ran; of the best of three the fastest of three.
        failures_foreseen_percent: of those that failed; None: none did.
        runners_refused_percent: of those that ran.
        moved: the layouts that are missed by most, with predicted over measured seconds.
    """

    table: str
    model: str
    nodes: int
    layouts: int
    given: int
    mean_percent: float
    ten_fastest_percent: float
    loss_of_best_percent: float
    loss_of_best_of_three_percent: float
    failures_foreseen_percent: float | None
    runners_refused_percent: float
    inside_band_percent: float
    moved: tuple[tuple[str, float], ...] = ()


def tables_of(folder: Path) -> list[Path]:
    """Return the tables of tried layouts in a folder: those that have all columns."""
    found = []
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            header = next(csv.reader(file), [])
        if "outcome" in header:
            found.append(path)
    return found


def read_tried(path: Path) -> tuple[list[Tried], dict[str, int]]:
    """Return the layouts of a table, and why rows are left out -> how many.

    Raises:
        DataError: a column is missing.
    """
    tried: list[Tried] = []
    skipped: dict[str, int] = defaultdict(int)
    for row in table(path, COLUMNS):
        made = whole(row, "dp") * whole(row, "micro_batch") * whole(row, "micro_batches")
        if made != whole(row, "global_batch"):
            skipped["replicas and micro-batches do not make up the global batch"] += 1
            continue
        ran = row["outcome"] == "ran"
        tried.append(
            Tried(
                row["model"],
                whole(row, "nodes"),
                _task(row),
                number(row, "seconds") if ran else None,
            )
        )
    return tried, dict(skipped)


def _task(row: Row) -> PredictionTask:
    hidden, heads = whole(row, "hidden"), whole(row, "heads")
    head = hidden // heads
    sizes = whole(row, "layers"), hidden, heads, heads, head, whole(row, "ffn")
    tied = sizes[-1] < UNTIED
    model = networks.language(*sizes, name=row["model"], vocab=VOCABULARY, tied=tied)
    parallel = ParallelSizes(
        tensor=whole(row, "tp"),
        pipeline=whole(row, "pp"),
        data=whole(row, "dp"),
        micro_batch=whole(row, "micro_batch"),
        distributed_optimizer=whole(row, "zero") > 0,
    )
    workload = Workload(SEQUENCE, whole(row, "global_batch"))
    system = system_of(load_hardware(GPU), load_software(STACK), workload, model)
    return PredictionTask(model, Layout("homogeneous", {model.name: parallel}), workload, system)


def foreseen(task: PredictionTask, software: Software) -> tuple[Foreseen, float]:
    """Return what a stack predicts of a layout, and its band."""
    try:
        said = predict_task(replace(task, system=replace(task.system, software=software)))
    except ConfigError:
        return Foreseen(float("inf"), 0.0), 0.0
    return Foreseen(said.seconds, said.fit_chance), said.high / said.seconds - 1


def groups_of(tried: Sequence[Tried]) -> Mapping[tuple[str, int], list[Tried]]:
    """Return (model, nodes) -> its layouts."""
    groups: dict[tuple[str, int], list[Tried]] = defaultdict(list)
    for each in tried:
        groups[each.model, each.nodes].append(each)
    return groups


def choices(path: Path, given: int = 0) -> Iterator[Choice]:
    """Yield how good the predictor chooses in each group of a table.

    Args:
        given: own runs of each group, chosen as the product would, which adjust the constants.
    """
    tried, _ = read_tried(path)
    for (model, nodes), members in groups_of(tried).items():
        if sum(each.seconds is not None for each in members) > given:
            yield _choice(path.stem, model, nodes, members, given)


def _choice(name: str, model: str, nodes: int, members: Sequence[Tried], given: int) -> Choice:
    software = load_software(STACK)
    known = [foreseen(each.task, software) for each in members]
    own: list[int] = []
    if given:
        own = _own_runs(members, [said for said, _ in known], given)
        runs = [
            OwnRun(f"run {place}", members[place].task, members[place].seconds or 0.0)
            for place in own
        ]
        software = fitted(runs, software, members[0].task.system.hardware.name)
        known = [foreseen(each.task, software) for each in members]
    return judged(name, model, nodes, members, known, own)


def _own_runs(members: Sequence[Tried], said: Sequence[Foreseen], given: int) -> list[int]:
    """Return the places of own runs: the most telling of the promising layouts that run."""
    ran = [place for place, each in enumerate(members) if each.seconds is not None]
    likely = [place for place in ran if said[place].chance > LIKELY] or ran
    likely.sort(key=lambda place: said[place].seconds)
    near = likely[:CANDIDATES]
    return [near[place] for place in most_telling([members[place].task for place in near], given)]


def judged(
    name: str,
    model: str,
    nodes: int,
    members: Sequence[Tried],
    known: Sequence[tuple[Foreseen, float]],
    own: Sequence[int],
) -> Choice:
    """Return how good predictions choose; own runs count as layouts that may be chosen."""
    ran = [place for place, each in enumerate(members) if each.seconds is not None]
    failed = [place for place, each in enumerate(members) if each.seconds is None]
    seconds = {place: float(members[place].seconds or 0.0) for place in ran}
    # Of an own run one knows the seconds.
    said = {place: seconds[place] if place in own else known[place][0].seconds for place in ran}
    usable = [place for place in ran if known[place][0].chance >= LIKELY] or ran
    best = min(seconds.values())
    order = sorted(usable, key=lambda place: said[place])
    asked = [place for place in ran if place not in own]
    errors = {place: known[place][0].seconds / seconds[place] - 1 for place in asked}
    errors = {place: error for place, error in errors.items() if np.isfinite(error)}
    fastest = sorted(errors, key=lambda place: seconds[place])[:10]
    worst = sorted(errors, key=lambda place: -abs(np.log1p(errors[place])))[:3]
    inside = [abs(1 / (1 + error) - 1) <= known[place][1] for place, error in errors.items()]
    return Choice(
        table=name,
        model=model,
        nodes=nodes,
        layouts=len(members),
        given=len(own),
        mean_percent=_percent(np.mean(np.abs(list(errors.values())))),
        ten_fastest_percent=_percent(np.mean([abs(errors[place]) for place in fastest])),
        loss_of_best_percent=_percent(seconds[order[0]] / best - 1),
        loss_of_best_of_three_percent=_percent(
            min(seconds[place] for place in order[:3]) / best - 1
        ),
        failures_foreseen_percent=_percent(
            np.mean([known[place][0].chance < LIKELY for place in failed])
        )
        if failed
        else None,
        runners_refused_percent=_percent(
            np.mean([known[place][0].chance < LIKELY for place in ran])
        ),
        inside_band_percent=_percent(np.mean(inside)),
        moved=tuple((str(members[place].task.layout), 1 + errors[place]) for place in worst),
    )


def _percent(share: Any) -> float:
    return round(100 * float(share), 2)
