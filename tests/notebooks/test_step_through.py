"""Stepping through three layouts: the notebook from top to bottom."""

from make.site.check import external_references
from tests.notebooks.headless import executed_copy, printed


def test_the_steps_are_drawn_and_only_the_planted_fault_is_red(tmp_path):
    notebook, page = executed_copy("03_step_through.ipynb", tmp_path)
    assert external_references(page) == []
    pictures = [
        "".join(output.data.get("text/html", "") for output in cell.outputs if "data" in output)
        for cell in notebook.cells
        if cell.cell_type == "code" and "show_step(stepper)" in cell.source
    ]
    assert len(pictures) >= 9
    assert all("class='mimokit stepper'" in picture for picture in pictures)
    assert ["class='wrong'" in picture for picture in pictures] == [False] * (len(pictures) - 1) + [
        True
    ]
    assert "end to end are what rank 2 has: True" in printed(notebook, "np.concatenate")
    for name in ("1F1B", "packing"):
        assert f"{name}, differences from the plan: 0" in printed(notebook, f'"{name}, diff')
    audio = printed(notebook, '"packing, diff')
    assert "forward of audio for micro-batch 0" in audio
    assert "micro-batch 1" not in audio
    assert "rank 0 to rank 2: planned what rank 0 has" in printed(notebook, "print(difference)")
    assert printed(notebook, "explain(cluster") == "100% of its norm, 1e-05 is allowed\n"
    (culprit,) = [cell for cell in notebook.cells if "show_culprit(cluster" in cell.source]
    assert sum("image/svg+xml" in output.get("data", {}) for output in culprit.outputs) == 2
