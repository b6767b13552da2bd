"""Folders of many runs become tables; what is broken in one does not hide the others."""

import json
import shutil
from pathlib import Path

import pytest

from mimokit.analysis import RunFolderError, explain, load_runs, read_run
from tests.analysis.planted_runs import Planted, write_run
from tests.rows import rows

FIRST_RELEASE = Path(__file__).parents[1] / "fixtures" / "first_release" / "runs"
ITERATIONS, RANKS = 12, 8


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "run_20260102_030405"
    for name, mode in (("baseline", "colocated"), ("apart", "heterogeneous")):
        write_run(folder / name, Planted(mode=mode, iterations=ITERATIONS, warmup=2))
    refused = folder / "refused"
    refused.mkdir()
    error = {"type": "ConfigError", "message": "no", "sentences": ["Module 'images': no."]}
    (refused / "error.json").write_text(json.dumps(error))
    return folder.parent


@pytest.fixture
def results(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "results"))


def test_tables_are_tidy(written: Path) -> None:
    runs = load_runs(written)
    assert runs.names == ["apart", "baseline", "refused"]
    assert len(runs.iterations) == 2 * ITERATIONS
    assert len(runs.ranks) == 2 * ITERATIONS * RANKS
    # Colocated: both modules on all ranks. Heterogeneous: each rank has one.
    assert len(runs.modules) == 2 * ITERATIONS * RANKS + ITERATIONS * RANKS
    assert not [name for name in runs.ranks if name.startswith(("images", "language"))]
    assert list(runs.modules)[:4] == ["run", "iteration", "rank", "module"]
    own = runs.modules.query("run == 'apart' and module == 'images'")
    assert set(own["rank"]) == {0, 1}
    assert runs.events.empty
    assert {str(runs.ranks[name].dtype) for name in ("run",)} == {"category"}
    row = runs.runs.set_index("run").loc["baseline"]
    assert row["layout"] == "colocated: images DP8 · language_module TP4 DP2"
    assert (row["language_module_tensor_parallel"], row["seed"], row["world_size"]) == (4, 0, 8)
    assert row["versions"] == "mimokit 0.1.0, torch 2.13.0"


def test_what_many_read_is_what_one_reads(written: Path) -> None:
    one = read_run(written / "run_20260102_030405" / "apart")
    many = load_runs(written)["apart"]
    assert many.iterations["loss"].to_list() == one.metrics["loss"].to_list()
    forward = many.modules.query("module == 'images' and rank == 1")["forward_time"].to_list()
    table = one.metrics_by_rank.query("rank == 1")
    assert forward == table["images_forward_time"].to_list()


@rows("given", "run_20260102_030405", "run_*", "run_20260102_030405/*")
def test_sweeps_and_globs_find_the_same_runs(written: Path, given: str) -> None:
    assert load_runs(written / given).names == load_runs(written).names


def test_one_run_and_several_paths(written: Path) -> None:
    folder = written / "run_20260102_030405"
    assert load_runs(folder / "apart").names == ["apart"]
    assert load_runs([folder / "baseline", folder / "apart"]).names == ["baseline", "apart"]


def test_equal_names_are_told_apart_by_their_sweeps(written: Path, tmp_path: Path) -> None:
    for sweep in ("run_1", "run_2"):
        shutil.copytree(written / "run_20260102_030405" / "apart", tmp_path / sweep / "apart")
    assert load_runs(tmp_path).names == ["run_1/apart", "run_2/apart"]


def test_a_refused_and_a_failed_run_are_rows(results: Path) -> None:
    folder = results / "run_20260102_030405" / "baseline"
    info = json.loads((folder / "experiment_info.json").read_text())
    (folder / "experiment_info.json").write_text(json.dumps({**info, "status": "failed"}))
    error = {"type": "RankError", "message": "rank 3 raised", "rank": 3, "step": 7}
    (folder / "error.json").write_text(json.dumps(error))
    rows = load_runs(results).runs.set_index("run")
    assert rows.loc["refused", "error"] == "Module 'images': no."
    assert rows.loc["refused", "status"] == "refused"
    assert rows.loc["refused", "iterations"] == 0
    assert rows.loc["baseline", "status"] == "failed"
    assert rows.loc["baseline", "error"] == "RankError: rank 3 raised"
    assert (rows.loc["baseline", "error_rank"], rows.loc["baseline", "error_step"]) == (3, 7)


def test_a_half_written_last_row_is_reported_and_left_out(results: Path) -> None:
    file = results / "run_20260102_030405" / "apart" / "metrics_by_rank.csv"
    whole = file.read_bytes()
    file.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 40])
    runs = load_runs(results)
    (problem,) = [one for one in runs.problems if one.run == "apart"]
    assert "ends in the middle of a row" in str(problem)
    assert len(runs["apart"].ranks) == ITERATIONS * RANKS - 1
    with pytest.raises(RunFolderError, match="ends in the middle of a row"):
        read_run(file.parent)
    assert runs.problems == load_runs(results).problems, "reading the rows reports nothing twice"


BREAKS = {
    "text for a number": ("metrics.csv", lambda text: text.replace("\r\n5,", "\r\nfive,"), "five"),
    "too many cells": (
        "metrics.csv", lambda text: text.replace("\r\n5,", "\r\n5,5,5,5,5,"), "more cells",
    ),
    "an empty file": ("metrics.csv", lambda text: "", "not even a header"),
    "a cut header": ("metrics.csv", lambda text: text[:20], "middle of its header"),
    "no iteration column": (
        "metrics.csv", lambda text: text.replace("iteration", "step", 1), "no column iteration",
    ),
    "an older version": (
        "metrics.csv", lambda text: text.replace("report_time", "old", 1), "earlier version",
    ),
    "no metrics": ("metrics.csv", None, "no metrics.csv"),
    "no ranks": ("metrics_by_rank.csv", None, "no metrics_by_rank.csv"),
    "broken info": ("experiment_info.json", lambda text: text[:30], "not valid JSON"),
    "a list for info": ("experiment_info.json", lambda text: "[]", "one JSON object"),
    "a broken trace": ("trace.json", lambda text: "{", "not a trace"),
}  # fmt: skip


def test_text_in_a_column_that_mimokit_does_not_write_costs_no_row(results: Path) -> None:
    file = results / "run_20260102_030405" / "apart" / "metrics.csv"
    header, *rows = file.read_text().splitlines()
    file.write_text("\n".join([f"{header},phase", *(f"{row},first" for row in rows), ""]))
    runs = load_runs(results)
    assert len(runs["apart"].iterations) == len(rows)
    (problem,) = [str(one) for one in runs.problems if one.run == "apart"]
    assert "'first' in line 2 of column phase" in problem


def test_a_refused_run_has_no_other_problem(results: Path) -> None:
    assert not [one for one in load_runs(results).problems if one.run == "refused"]


def test_columns_that_no_run_has_end_no_analysis(results: Path) -> None:
    folder = results / "run_20260102_030405" / "apart"
    by_rank = folder / "metrics_by_rank.csv"
    header, *rows = by_rank.read_text().splitlines()
    by_rank.write_text("\n".join([f"{header},task", *(f"{row},read" for row in rows), ""]))
    runs = load_runs(results)
    assert explain(runs, "apart").sentences()
    assert "task" not in runs.ranks or runs.ranks["task"].dtype.kind == "f"
    assert any("'read' in line 2" in str(one) for one in runs.problems)
    table = folder / "metrics.csv"
    table.write_text('"a\n",' + table.read_text())
    found = [str(one) for one in load_runs(results).problems if one.run == "apart"]
    assert any("has a line break in the name of a column" in one for one in found)


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_broken_is_named_and_the_rest_is_read(results: Path, name: str) -> None:
    file_name, change, sentence = BREAKS[name]
    file = results / "run_20260102_030405" / "apart" / file_name
    if change is None:
        file.unlink()
    else:
        text = file.read_bytes().decode() if file.exists() else ""
        file.write_bytes(change(text).encode())
    runs = load_runs(results)
    assert len(runs.ranks) >= ITERATIONS * RANKS
    assert len(runs.events) == 0
    found = [str(one) for one in runs.problems if one.run == "apart"]
    assert any(sentence in one for one in found), found
    assert all(str(results) in one and "\n" not in one for one in found)
    assert runs["baseline"].problems == ()
    assert runs.runs.set_index("run").loc["apart", "mode"] == "heterogeneous"


def test_a_row_with_text_is_left_out_alone(results: Path) -> None:
    file = results / "run_20260102_030405" / "apart" / "metrics.csv"
    file.write_bytes(file.read_bytes().replace(b"\r\n5,", b"\r\nfive,"))
    steps = load_runs(results)["apart"].iterations
    assert steps["iteration"].to_list() == [one for one in range(ITERATIONS) if one != 5]


def test_folders_without_runs_are_reported(results: Path) -> None:
    (results / "run_20260102_030405" / "notes").mkdir()
    (results / "tensorboard").mkdir()
    sentences = [str(one) for one in load_runs(results).problems]
    assert sum("notes holds no run" in one for one in sentences) == 1
    assert sum("tensorboard holds no run" in one for one in sentences) == 1


def test_experiments_that_a_sweep_did_not_run_are_named(results: Path) -> None:
    entries = [
        {"name": name, "directory": name, "status": status, "message": why}
        for name, status, why in (
            ("apart", "completed", ""),
            ("later", "stopped", "the sweep was stopped before it"),
        )
    ]
    file = results / "run_20260102_030405" / "sweep.json"
    file.write_text(json.dumps({"experiments": entries}))
    sentences = [str(one) for one in load_runs(results).problems]
    (found,) = [one for one in sentences if "has no results" in one]
    assert "The experiment later of" in found
    assert "stopped (the sweep was stopped before it)." in found
    file.write_text("{")
    assert any("not the record of a sweep" in str(one) for one in load_runs(results).problems)


def test_runs_that_were_moved_aside_are_not_taken(results: Path) -> None:
    folder = results / "run_20260102_030405" / "apart"
    shutil.copytree(folder, folder / "earlier" / "20260101")
    assert load_runs(results).names == ["apart", "baseline", "refused"]
    assert load_runs(folder / "earlier").names == ["20260101"]


@rows("name", "nowhere", "nothing_*", "empty", "file.txt")
def test_no_run_at_all_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("")
    with pytest.raises(RunFolderError) as caught:
        load_runs(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_the_warm_up_is_what_the_run_marked(written: Path) -> None:
    runs = load_runs(written)
    assert runs.first_settled() == {"apart": 2, "baseline": 2}
    assert len(runs.settled(runs.ranks)) == 2 * (ITERATIONS - 2) * RANKS
    runs.iterations["warmup"] = float("nan")
    assert runs.first_settled() == {"apart": 2, "baseline": 2}, "as the run's info says"


def test_the_first_release_is_read() -> None:
    runs = load_runs(FIRST_RELEASE)
    rows = runs.runs.set_index("run")
    assert rows.loc["colocated", "status"] == "completed"
    assert rows.loc["heterogeneous", "language_module_pipeline_parallel"] == 3
    assert rows.loc["colocated", "warmup_iterations"] == 5
    assert runs.first_settled() == {"colocated": 3, "heterogeneous": 3}
    assert len(runs.ranks) == 2 * 4 * RANKS
    assert len(runs.modules) == 4 * (2 * RANKS + RANKS), "ranks without a module have zeros there"
    assert set(runs.events["run"]) == {"colocated", "heterogeneous"}
    assert {one.path.name for one in runs.problems} == {"metrics.csv", "metrics_by_rank.csv"}
    assert all("an earlier version wrote it" in str(one) for one in runs.problems)


@pytest.mark.parametrize(
    ("hardware", "hosts", "limit"),
    [
        ({"memory_bytes": 64 * 2**30, "accelerators": []}, ["a"], 8 * 2**30),
        ({"memory_bytes": 64 * 2**30, "accelerators": []}, ["a", "b"], None),
        ({"memory_bytes": 2**40, "accelerators": ["NVIDIA H100 80GB HBM3"] * 8}, ["a"], 80e9),
        ({"memory_bytes": 2**40, "accelerators": ["Some GPU"] * 8}, ["a"], None),
        (None, [], None),
    ],
)
def test_the_memory_of_a_rank_is_that_of_its_device(
    results: Path, hardware: object, hosts: list[str], limit: float | None
) -> None:
    file = results / "run_20260102_030405" / "apart" / "experiment_info.json"
    info = json.loads(file.read_text())
    file.write_text(json.dumps({**info, "hardware": hardware, "hosts": hosts}))
    assert load_runs(results).memory_limit("apart") == (limit and pytest.approx(limit, rel=0.08))


def test_an_unknown_run_is_refused_in_one_sentence(written: Path) -> None:
    with pytest.raises(ValueError, match=r"no such run was loaded; there are apart, baseline"):
        load_runs(written)["other"]


def test_only_what_is_asked_for_is_read(written: Path) -> None:
    """The files by rank are a hundred times as large as the others."""
    runs = load_runs(written)
    assert len(runs["apart"].ranks) == ITERATIONS * RANKS
    assert "_by_rank" not in vars(runs)
    assert len(runs.ranks) == 2 * ITERATIONS * RANKS
    assert len(runs.only(["apart"]).ranks) == ITERATIONS * RANKS
    assert list(runs.only(["apart"]).ranks["run"].cat.categories) == ["apart"]
