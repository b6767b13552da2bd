"""The view of runs in a kernel: folders of no run, of one and of 200, and what a page keeps."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mimokit.analysis import RunFolderError, load_runs
from mimokit.analysis.many_runs import predicted_step
from mimokit.charts.runs_view.content import MOST_SHOWN
from mimokit_widgets import RunsView
from tests.analysis.planted_runs import (
    Planted,
    write_run,
    write_trace_of_forwards,
    write_trace_of_steps,
)

MANY = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("results")
    first = write_run(results / "run_000", Planted(iterations=11, warmup=2))
    for number in range(1, MANY):
        copy = results / f"run_{number:03}"
        copy.mkdir()
        for file in first.iterdir():
            os.link(file, copy / file.name)
    return results


def test_a_folder_without_runs_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=str(tmp_path)):
        RunsView(tmp_path)


def test_of_200_runs_the_best_are_shown_and_the_others_read_when_asked(folder: Path) -> None:
    view = RunsView(SimpleNamespace(directory=folder))  # as a sweep has it
    assert len(view._about["runs"]) == MANY
    assert len(view.shown) == len(view._figures) == MOST_SHOWN
    view._on_message(view, {"type": "figures", "names": ["run_150", "gone"]}, [])
    assert set(view._figures) == {*view.shown, "run_150"}
    with pytest.raises(ValueError, match="Run 'gone': no such run was loaded"):
        view.shown = ["gone"]
    assert len(view.shown) == MOST_SHOWN


def test_one_run_is_told_of_and_kept_and_a_new_one_found(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "results"
    source.mkdir()
    os.symlink(folder / "run_000", source / "run_000")
    view = RunsView(source)
    view.selected = "run_000"
    assert "colocated on 8 ranks" in view._details["run_000"]["plan"]
    assert "colocated on 8 ranks" in view._in_html()
    os.symlink(folder / "run_001", source / "run_001")
    view.reload()
    assert [run["name"] for run in view._about["runs"]] == ["run_000", "run_001"]
    assert (view.shown, view.selected) == (["run_000", "run_001"], "run_000")
    assert set(view._details) == {"run_000"}
    assert len(load_runs(source)) == 2


def test_a_trace_is_a_timeline_and_a_broken_one_a_sentence(folder: Path, tmp_path: Path) -> None:
    for name in ("traced", "broken"):
        (tmp_path / name).mkdir()
        for file in (folder / "run_000").iterdir():
            os.link(file, tmp_path / name / file.name)
    write_trace_of_forwards(tmp_path / "traced" / "trace.json")
    (tmp_path / "broken" / "trace.json").write_text("{}")
    view = RunsView(tmp_path)
    view.selected = "traced"
    timeline = view._details["traced"]["timeline"]
    assert [lane["name"] for lane in timeline["lanes"]] == [f"rank {rank}" for rank in range(8)]
    assert [span[0] for span in timeline["spans"]] == list(range(8))
    assert timeline["words"] == ["forward of images, micro-batch 0"]
    view.selected = "broken"
    told = view._details["broken"]
    assert told["timeline"] is None
    assert any(words.startswith("Its trace cannot be drawn: ") for words in told["sentences"])


def test_the_predicted_step_is_known_of_runs_that_are_shown(folder: Path) -> None:
    view = RunsView(folder / "run_000", hardware="h100")
    config = view.runs.config("run_000")
    expected = pytest.approx(predicted_step(config, "h100"), rel=1e-4)
    assert view._figures["run_000"]["planned"] == expected
    assert RunsView(folder / "run_000")._figures["run_000"]["planned"] is None
    with pytest.raises(ValueError, match="no_such_gpu"):
        RunsView(folder / "run_000", hardware="no_such_gpu")


def test_two_runs_begin_with_what_makes_one_slower(tmp_path: Path) -> None:
    even = Planted(iterations=20, warmup=2)
    write_run(tmp_path / "quick", even)
    write_run(tmp_path / "late", replace(even, slow={3: 1.6}, seed=1))
    write_run(tmp_path / "resting", replace(even, rest=0.02, seed=2))
    for name, slow in (("quick", {}), ("late", {3: 1.6})):
        write_trace_of_steps(tmp_path / name / "trace.json", slow)
    view = RunsView([tmp_path / "quick", tmp_path / "late"])
    told = view._difference
    assert told["sentences"][0].startswith("late is ")
    assert told["sentences"][1].startswith("Rank 3 works ")
    assert "Why late is slower than quick" in told["picture"]
    timeline = told["timeline"]
    lanes = [(lane["group"], lane["name"]) for lane in timeline["lanes"]]
    assert lanes[6:8] == [("rank 3", "late"), ("rank 3", "quick")]
    lit = {timeline["spans"][number][0] for number in timeline["lit"]}
    assert lit == {6}  # all spans of rank 3 in the slow run, and no other
    assert len(timeline["lit"]) == sum(span[0] == 6 for span in timeline["spans"])
    assert told["sentences"][0] in view._in_html()
    view = RunsView(tmp_path, baseline="quick")
    assert "late" in view._difference["sentences"][0]  # the farthest from the best
    assert view._difference["timeline"] is not None
    view.selected = "resting"
    assert view._difference["sentences"][0].startswith(
        "resting is 17 ms slower per step than quick"
    )
    assert view._difference["timeline"] is None
    view.baseline = "resting"  # the run that is looked at: the first pair again
    assert "resting is" in view._difference["sentences"][0]
    assert RunsView(tmp_path / "quick")._difference == {}
