"""A sweep and what its folders say: the notebook from top to bottom, with fewer iterations."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from make.site.check import external_references
from mimokit import calibrate_from
from mimokit.analysis import compare, load_runs
from mimokit.prediction.own_runs.fit import mean_error
from mimokit.prediction.step_time import load_software
from tests.notebooks.headless import executed_copy, insert_behind, printed

ITERATIONS = 10


def _shortened(notebook: Any) -> None:
    fewer = (
        "for config in chosen.values():\n"
        f"    config.runtime.num_iterations = {ITERATIONS}\n"
        "    config.runtime.warmup_iterations = 3"
    )
    insert_behind(notebook, "iterations", fewer)


def test_the_answer_is_that_of_the_folders(tmp_path: Path) -> None:
    notebook, page = executed_copy("05_post_hoc_analysis.ipynb", tmp_path, _shortened)
    assert external_references(page) == []
    runs = load_runs(tmp_path / "runs")
    assert len(runs) == 7
    assert runs.problems == ()
    whole = runs.only([name for name in runs if name != "rank_killed"])
    assert set(whole.runs["status"]) == {"completed"}
    assert len(whole.ranks) == 4 * len(whole.iterations) == 4 * 6 * ITERATIONS
    _failed(notebook, runs.folders["rank_killed"])
    comparison = compare(runs, "homogeneous_tp1_dp4", "tokens_per_sec")
    said = "".join(_markdown(notebook, "best, worst ="))
    assert f"**{comparison.best}** trains on the most tokens per second" in said
    worst = comparison.ranked[-1]
    assert f"more than {worst}." in said
    step = _markdown(notebook, "lost_time =")[0]
    assert f"A step of {worst} takes" in step
    assert float(re.search(r"grows most is \*[^*]+\*: \+(\d+) ms", step)[1]) >= 0
    assert "two layouts in the first 8 steps" in printed(notebook, "spread[:8]")
    _calibrated(notebook, runs.folders["rank_killed"].parent)
    (report,) = (tmp_path / "runs").rglob("report.html")
    assert external_references(report.read_text()) == []
    drawn = [
        cell.source.strip().splitlines()[-1].split("(")[0]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/svg+xml" in output.get("data", {})
    ]
    assert drawn == ["charts.stragglers", "charts.rank_memory"]


def _failed(notebook: Any, folder: Path) -> None:
    """The experiment that lost a rank is named, in the sweep and in its folder."""
    error = json.loads((folder / "error.json").read_text())
    assert error["rank"] == 2
    assert "RankDied on rank 2 in step" in printed(notebook, "error.json")
    assert "rank_killed: failed" in printed(notebook, "run.result()")


def _calibrated(notebook: Any, folder: Path) -> None:
    """What is said of the errors is their mean, and the constants are those of these runs."""
    own = calibrate_from(folder, folder / "this-machine.json", software="megatron-core")
    assert own.before.keys() == own.left_out.keys() == set(load_runs(folder))
    assert str(own) in printed(notebook, "own = mimokit.calibrate_from(")
    (said,) = _markdown(notebook, "off = errors.abs()")
    means = [mean_error(errors) for errors in (own.before, own.after, own.left_out)]
    assert [f"by {mean:.0%}" for mean in means] == re.findall(r"by \d+%", said)
    written = load_software(str(folder / "own.json"))
    assert written.gpu == own.software.gpu == "a rank of this machine"
    for name, (_, value) in own.moved.items():
        assert getattr(written, name) == pytest.approx(value)
    assert " ms predicted" in printed(notebook, 'software=result.directory / "own.json"')


def _markdown(notebook: Any, source: str) -> list[str]:
    """Return the texts that the one cell whose source contains a text has made."""
    (cell,) = [c for c in notebook.cells if c.cell_type == "code" and source in c.source]
    return [
        output.data["text/markdown"]
        for output in cell.outputs
        if "text/markdown" in output.get("data", {})
    ]
