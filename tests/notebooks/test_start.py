"""The start notebook, in this process and without engines: its picture, and where it leads."""

import contextlib
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from mimokit.charts import _renderer
from tests import seams
from tests.charts.pictures import faults
from tests.charts.test_charts import REPORT

ROOT = Path(__file__).parents[2]
NOTEBOOK = nbformat.read(ROOT / "notebooks" / "start.ipynb", 4)


def test_one_picture_has_plan_ranks_and_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    @contextlib.contextmanager
    def engines(n: int) -> Any:
        asked.append(n)
        yield

    monkeypatch.setattr(seams.ENGINE_CLUSTER, engines)
    monkeypatch.setattr(seams.VERIFY, lambda cluster, config, steps: REPORT)
    monkeypatch.chdir(ROOT / "notebooks")
    names: dict[str, Any] = {}
    for cell in NOTEBOOK.cells:
        if cell.cell_type == "code":
            before, _, last = cell.source.rpartition("\n")
            exec(before or "pass", names)
            if last.startswith("alt."):
                chart = eval(last, names)
            else:
                exec(last, names)
    titles = re.findall(r"'text': '(Rank map|Batch split|Proof)'", str(chart.to_dict()))
    assert faults(_renderer.bundle_of(chart)["image/svg+xml"]) == []
    assert titles == ["Rank map", "Batch split", "Proof"]
    assert asked == [names["plan"].world_size] == [8]
    assert names["planner"].config == names["config"]


def test_it_leads_to_every_tutorial() -> None:
    links = set(re.findall(r"\]\((\w+\.ipynb)\)", NOTEBOOK.cells[-1].source))
    there = {file.name for file in (ROOT / "notebooks").glob("*.ipynb")}
    assert links == there - {"start.ipynb"}
