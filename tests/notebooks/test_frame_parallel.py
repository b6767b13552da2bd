"""Frame parallel: the notebook from top to bottom, with fewer iterations."""

from typing import Any

import pytest

from make.site.check import external_references
from tests.notebooks.headless import executed_copy, insert_behind, printed

ITERATIONS = 5


def _shortened(notebook: Any) -> None:
    insert_behind(notebook, "iterations", f"iterations = {ITERATIONS}")


def table(notebook: Any, source: str) -> list[str]:
    (cell,) = [one for one in notebook.cells if source in one.source]
    text: str = cell.outputs[-1].data["text/plain"]
    return text.splitlines()


def test_shared_frames_change_no_loss_and_save_time(tmp_path):
    notebook, page = executed_copy("04_frame_parallel.ipynb", tmp_path, _shortened)
    assert external_references(page) == []
    assert "in a micro-batch, not shared (runtime.patch_type)" in page
    assert "Frame parallel saves" in printed(notebook, "batch.forecast")
    (judged,) = [one for one in notebook.cells if "def judged" in one.source]
    verdicts = judged.outputs[-1].data["text/html"]
    assert (verdicts.count("<td>True</td>"), verdicts.count("<td>False</td>")) == (2, 4)
    losses = [row.split() for row in table(notebook, 'losses["difference"]')[-4:]]
    assert len(losses) == 4
    assert all(float(row[1]) == pytest.approx(float(row[2]), abs=2e-5) for row in losses)
    rows = table(notebook, "def encoder_ms")[-2:]
    assert all(float(value) > 0 for row in rows for value in row.split()[1:])
    assert "Measured: the slowest encoder took" in printed(notebook, "print(here.forecast)")
    assert "computes what one process computes" in page
