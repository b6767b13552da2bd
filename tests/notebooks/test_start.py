"""The start notebook, in this process and without engines: what it shows, and where it leads."""

import contextlib
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from mimokit.charts import _renderer
from mimokit_widgets import BatchSplit, RankMap
from tests import seams
from tests.charts.pictures import faults
from tests.charts.test_charts import REPORT

ROOT = Path(__file__).parents[2]


def cells() -> list[Any]:
    """Return those of the notebook."""
    found: list[Any] = nbformat.read(ROOT / "notebooks" / "start.ipynb", 4).cells
    return found


def test_it_shows_ranks_plan_and_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    @contextlib.contextmanager
    def engines(n: int) -> Any:
        asked.append(n)
        yield

    monkeypatch.setattr(seams.ENGINE_CLUSTER, engines)
    monkeypatch.setattr(seams.VERIFY, lambda cluster, config, steps: REPORT)
    monkeypatch.chdir(ROOT / "notebooks")
    shown: list[Any] = []
    names: dict[str, Any] = {"display": lambda *views: shown.extend(views)}
    for cell in cells():
        if cell.cell_type == "code":
            exec(cell.source, names)
    ranks, split, proof = shown
    assert isinstance(ranks, RankMap)
    assert isinstance(split, BatchSplit)
    assert ranks.plan == split.plan == names["plan"]
    assert faults(_renderer.bundle_of(proof)["image/svg+xml"]) == []
    assert proof.to_dict()["title"]["text"] == "Proof"
    assert asked == [names["plan"].world_size] == [8]
    assert names["planner"].config == names["config"]


def test_it_leads_to_every_tutorial() -> None:
    links = set(re.findall(r"\]\((\w+\.ipynb)\)", cells()[-1].source))
    there = {file.name for file in (ROOT / "notebooks").glob("*.ipynb")}
    assert links == there - {"start.ipynb"}
