"""Three modes side by side: the notebook from top to bottom, with fewer iterations."""

import re
from typing import Any

import nbformat

from make.site.check import external_references
from tests.notebooks.headless import executed_copy, insert_behind, printed
from tests.planted import FEWER_MEASUREMENTS

ITERATIONS = 4
MEASURE_LESS_OFTEN = f"""
def measure_less_often():
    import importlib

    for name, count in {FEWER_MEASUREMENTS!r}.items():
        module, _, constant = name.rpartition(".")
        setattr(importlib.import_module(module), constant, count)


_ = cluster.run(measure_less_often, world_size=8)
"""


def _shortened(notebook: Any) -> None:
    fewer = f"for config in configs.values():\n    config.runtime.num_iterations = {ITERATIONS}"
    insert_behind(notebook, "iterations", fewer)
    (place,) = [n for n, cell in enumerate(notebook.cells) if "mimokit.calibrate(" in cell.source]
    notebook.cells.insert(place, nbformat.v4.new_code_cell(MEASURE_LESS_OFTEN))


def test_three_modes_train_alike_and_leave_traces(tmp_path):
    notebook, page = executed_copy("02_heterogeneous.ipynb", tmp_path, _shortened)
    # The page links to Perfetto but loads nothing from there.
    assert external_references(page) == []
    (losses,) = [c for c in notebook.cells if c.source.startswith("losses =")]
    table = losses.outputs[0].data["text/plain"]
    differences = [float(line.split()[-1]) for line in table.splitlines()[2:]]
    assert len(differences) == ITERATIONS
    assert max(differences) < 2e-5
    aligned = re.findall(r"within (\d+) microseconds", printed(notebook, "clocks aligned"))
    assert len(aligned) == 3
    assert len(re.findall(r"trace\.json \(\d+ kB\)", printed(notebook, "stat().st_size"))) == 3
    assert "computes what one process computes" in page
    _predicted(notebook)


def _predicted(notebook: Any) -> None:
    (table,) = [c for c in notebook.cells if c.source.startswith("def median_step")]
    rows = table.outputs[0].data["text/plain"].splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["homogeneous", "colocated", "heterogeneous"]
    assert all(float(row.split()[1]) > 0 for row in rows)
