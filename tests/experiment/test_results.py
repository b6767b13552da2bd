"""The folder of a run, written without a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mimokit
from mimokit.analysis import read_run, read_trace
from mimokit.config import load_experiment_config
from mimokit.experiment.results import write_error, write_results
from mimokit.samples import RunFile, Sample, StepSample, TraceSample
from tests.charts.fakes import samples
from tests.layouts import digits_config

CONFIG = digits_config((1, 8), (4, 2))
PLAN = mimokit.plan(CONFIG)


def _with_traces() -> list[Sample]:
    traces = [
        TraceSample(
            rank=rank,
            iteration=0,
            clock_offset=0.0,
            clock_error=1e-6,
            events=(("load", None, 0, 0.0, 1.0), ("forward", "images", 0, 1.0, 2.0)),
        )
        for rank in range(8)
    ]
    return [*samples(iterations=10), *traces]


def test_a_folder_has_everything_that_the_reader_reads(tmp_path: Path) -> None:
    write_results(tmp_path / "a" / "run", CONFIG, PLAN, _with_traces(), 12.3456)
    tables = read_run(tmp_path / "a" / "run")
    assert len(tables.metrics) == 10
    assert len(tables.metrics_by_rank) == 80
    assert tables.evaluations["iteration"].tolist() == [9]
    assert (tables.info["world_size"], tables.info["seconds"]) == (8, 12.346)
    again = load_experiment_config(tables.config_file)
    assert again.model.module_parallelisms == CONFIG.model.module_parallelisms
    assert len(read_trace(tables.directory)) == 16
    written = {path.name for path in tables.directory.iterdir()}
    assert written == {str(name) for name in RunFile} - {RunFile.ERROR}


def test_a_run_that_failed_keeps_what_was_measured(tmp_path: Path) -> None:
    write_results(tmp_path, CONFIG, PLAN, samples(iterations=3), 1.0)
    write_error(tmp_path, RuntimeError("rank 3 ran out of memory"))
    assert len(read_run(tmp_path).metrics) == 3
    assert json.loads((tmp_path / RunFile.ERROR).read_text()) == {
        "type": "RuntimeError",
        "message": "rank 3 ran out of memory",
    }


def test_without_the_performance_monitor_there_are_no_metrics(tmp_path: Path) -> None:
    write_results(tmp_path, CONFIG, PLAN, [StepSample(0, loss=1.0)], 1.0)
    assert not (tmp_path / RunFile.METRICS).exists()
    assert (tmp_path / RunFile.CONFIG).exists()


def test_a_file_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_results(tmp_path, CONFIG, PLAN, samples(iterations=3), 1.0)
    before = (tmp_path / RunFile.METRICS).read_text()

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("csv.DictWriter.writerows", full)
    with pytest.raises(OSError, match="no space left"):
        write_results(tmp_path, CONFIG, PLAN, samples(iterations=5), 1.0)
    assert (tmp_path / RunFile.METRICS).read_text() == before
    assert not [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")]
