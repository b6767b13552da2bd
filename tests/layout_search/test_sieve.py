"""What a search leaves out uncomputed would not have been chosen, and is counted all the same."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mimokit.layout_search import Constraints, SearchTask
from mimokit.layout_search.blocks import blocks
from mimokit.layout_search.constraints import MODES
from mimokit.layout_search.cost_tables import enumerate_modules, make_tables
from mimokit.layout_search.evaluate import Scan
from mimokit.layout_search.incumbents import PER_MODE
from mimokit.layout_search.pareto import Kept, front
from mimokit.prediction import EncoderInput, Workload
from mimokit.prediction.deployment_modes import memory_apart, seconds_beside
from tests import seams
from tests.layout_search.small import graph_model, model
from tests.layout_search.test_oracle import a_task
from tests.rows import rows

KEEP = 8
PLAIN = {"virtual_pipeline": (1,), "optimizer_instances": (1, 2), "recompute": ("none", "full")}
FEW = {**PLAIN, "optimizer_instances": (1,), "recompute": ("none",), "tensor_parallel": (1, 2)}
MANY_IMAGES = Workload(2048, 16, inputs={"images": EncoderInput(1024, 40)})


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.FIRST_LAYOUTS, 64)
    monkeypatch.setattr(seams.MOST_LAYOUTS_OF_A_BLOCK, 1024)


def task(**changes: Any) -> SearchTask:
    return a_task(gpus=8, constraints=Constraints(sizes={"*": PLAIN}), **changes)


TASKS: dict[str, Callable[[], SearchTask]] = {
    "one encoder": task,
    "chunks": lambda: replace(task(), constraints=Constraints(memory_share=0.06)),
    "cost": lambda: task(objective="cost", model=model(experts=4)),
    "memory": lambda: task(objective="memory"),
    "passes": lambda: task(workload=MANY_IMAGES),
    "few at once": lambda: task(workload=replace(MANY_IMAGES, encoder_microbatches=2)),
    "zb-h1": lambda: task(workload=Workload(2048, 16, pipeline_order="zb-h1")),
    "gpipe": lambda: task(workload=Workload(2048, 16, pipeline_order="gpipe")),
    "graph": lambda: replace(
        task(), model=graph_model(), gpus=7, constraints=Constraints(sizes={"*": FEW})
    ),
    "two encoders": lambda: replace(
        task(), model=model(encoders=2), gpus=8, constraints=Constraints(sizes={"*": FEW})
    ),
}


def scanned(task: SearchTask, *, every: bool) -> tuple[Scan, int]:
    """Return a search without simulations, and how many layouts' seconds it computed."""
    language, others, _ = enumerate_modules(task)
    scan = Scan(task, make_tables(task, language, others), keep=KEEP)
    picked, computed = scan._sieve.picked, []

    def counted(block: Any, **options: bool) -> Any:
        layouts = picked(block, every=every or options["every"])
        computed.append(len(layouts.language))
        return layouts

    scan._sieve.picked = counted  # type: ignore[method-assign]
    for block in blocks(task, scan.tables):
        scan.see(block)
    return scan, sum(computed)


def answers(scan: Scan) -> list[Any]:
    """Return the counts, the least scores of every mode, and the front."""
    kept = scan.kept
    scores = [np.sort(kept.score)[:KEEP].tolist()]
    scores += [np.sort(kept.score[kept.mode == n])[:PER_MODE].tolist() for n in range(len(MODES))]
    return [scan.evaluated, scan.fitting, +scan.dropped, scan.best, scores, points(kept)]


def points(kept: Kept) -> list[tuple[float, ...]]:
    rows = front(kept.gpus, kept.seconds, kept.memory)
    columns = (kept.gpus, kept.seconds, kept.memory, kept.mode, kept.language)
    return list(zip(*(column[rows].tolist() for column in columns), strict=True))


@rows("name", *TASKS)
def test_what_is_left_out_changes_no_answer(name: str) -> None:
    chosen = TASKS[name]()
    sieved, computed = scanned(chosen, every=False)
    whole, all_of_them = scanned(chosen, every=True)
    assert answers(sieved) == answers(whole)
    assert all_of_them == whole.evaluated
    assert computed < all_of_them


def test_a_bound_that_is_too_high_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.SECONDS_BESIDE, lambda *given: 1.5 * seconds_beside(*given) + 0.01)
    chosen = task()
    assert answers(scanned(chosen, every=False)[0]) != answers(scanned(chosen, every=True)[0])


def test_bytes_that_are_counted_twice_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(*given: Any) -> tuple[Any, Any]:
        own, others = memory_apart(*given)
        return own, 2 * others

    monkeypatch.setattr(seams.MEMORY_APART, twice)
    chosen = TASKS["chunks"]()
    assert answers(scanned(chosen, every=False)[0]) != answers(scanned(chosen, every=True)[0])
