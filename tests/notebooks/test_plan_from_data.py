"""The notebook that plans from the data, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

from tests.notebooks.headless import executed_copy, outputs_of


def test_it_measures_predicts_searches_runs_and_proves(tmp_path: Path) -> None:
    notebook, _ = executed_copy("09_plan_from_data.ipynb", tmp_path)
    shown = [(output.get("text", ""), output.get("data", {})) for output in outputs_of(notebook)]
    told = "\n".join(
        printed + data.get("text/markdown", data.get("text/plain", "")) for printed, data in shown
    )
    assert re.search(r"images\.items +mean +6\.17 +p95 +\S+ +most +64\.0", told)
    assert "lost to stragglers" in told
    assert re.search(r"Without the largest \d+% of the samples \(more than \d+ tokens", told)
    assert len(re.findall(r"predicted +\d+ ms, measured +\d+ ms", told)) == 3
    assert "the layout computes what one process computes" in told
