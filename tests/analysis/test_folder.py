"""Good and broken results folders."""

from pathlib import Path

import pytest

from mimokit.analysis import (
    RunFolderError,
    per_iteration,
    read_run,
    samples_to_evaluations,
    samples_to_steps,
)
from tests.charts.fakes import samples


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = samples(iterations=20, ranks=2)
    steps = samples_to_steps(made)
    per_iteration(steps).to_csv(tmp_path / "metrics.csv", index=False)
    steps.to_csv(tmp_path / "metrics_by_rank.csv", index=False)
    samples_to_evaluations(made).to_csv(tmp_path / "evaluations.csv", index=False)
    (tmp_path / "experiment_info.json").write_text('{"world_size": 2}')
    return tmp_path


def test_a_good_folder_is_read(folder: Path) -> None:
    tables = read_run(str(folder))
    assert len(tables.metrics) == 20
    assert len(tables.metrics_by_rank) == 40
    assert list(tables.evaluations["task"]) == ["read", "read"]
    assert tables.info == {"world_size": 2}
    assert tables.config_file == folder / "config.yaml"


def test_only_metrics_are_needed(folder: Path) -> None:
    for name in ("metrics_by_rank.csv", "evaluations.csv", "experiment_info.json"):
        (folder / name).unlink()
    tables = read_run(folder)
    assert tables.metrics_by_rank.empty
    assert tables.evaluations.empty
    assert tables.info == {}


def test_a_run_without_an_iteration_is_an_empty_table(folder: Path) -> None:
    (folder / "metrics.csv").write_text("iteration,total_time,loss\n")
    assert read_run(folder).metrics.empty


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"There is no results folder at .*nowhere"):
        read_run(tmp_path / "nowhere")


def test_a_folder_without_metrics(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"has no metrics\.csv"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("metrics.csv", "", r"metrics\.csv is empty"),
        ("metrics.csv", "iteration,loss\n1,2\n", "has no column total_time"),
        ("metrics.csv", "iteration,total_time,loss\n1,fast,2\n", "has 'fast' in line 2"),
        ("metrics.csv", "iteration,total_time,loss\n1,1,1\n,1,1\n", "no iteration in line 3"),
        ("metrics.csv", 'iteration,total_time,loss\n1,"2,3\n', "not a readable CSV table"),
        ("metrics_by_rank.csv", "iteration,total_time,loss\n", "has no column rank"),
        ("experiment_info.json", "{", "not valid JSON"),
        ("experiment_info.json", "[]", "must contain one JSON object"),
    ],
)
def test_a_broken_file_is_named_in_one_sentence(
    folder: Path, name: str, content: str, sentence: str
) -> None:
    (folder / name).write_text(content)
    with pytest.raises(RunFolderError, match=sentence) as caught:
        read_run(folder)
    assert "\n" not in str(caught.value)


def test_a_binary_file_is_refused(folder: Path) -> None:
    (folder / "metrics.csv").write_bytes(b"\xff\xfe\x00\x81" * 10)
    with pytest.raises(RunFolderError, match=r"metrics\.csv"):
        read_run(folder)
