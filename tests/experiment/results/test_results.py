"""The folder of a run, written without a cluster."""

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import mimokit
from mimokit.analysis import read_run, read_trace
from mimokit.cluster import RankError, RunAborted
from mimokit.config import ConfigError
from mimokit.config_files import load_experiment_config
from mimokit.experiment.results.folder import EARLIER, Folder, new_root, new_run_folder
from mimokit.experiment.results.info import RunSetting, TimeLimitError, git_state
from mimokit.experiment.results.tables import AppendedTable
from mimokit.experiment.results.writer import RunWriter
from mimokit.planning.digests import digest_of_file
from mimokit.result_files import RunFile
from mimokit.samples import (
    ProfileSample,
    RankFacts,
    RankHardware,
    Sample,
    StepSample,
    TraceSample,
    module_column,
)
from tests import seams
from tests.charts.fakes import samples, step
from tests.layouts import digits_config
from tests.rows import rows

CONFIG = digits_config((1, 8), (4, 2), num_iterations=10, warmup_iterations=2)
PLAN = mimokit.plan(CONFIG)


def _writer(folder: Path, *loggers: Any) -> RunWriter:
    writer = RunWriter(Folder.claim(folder), RunSetting(CONFIG, PLAN), loggers)
    writer.begin()
    return writer


def _written(folder: Path, made: list[Sample], error: Exception | None = None) -> None:
    """Write a run to its end."""
    writer = _writer(folder)
    for sample in made:
        writer.take(sample)
    writer.finish(made, 12.3456, error, {"healthy": True, "wrong": []})


def _facts(rank: int) -> RankFacts:
    hardware = RankHardware(cpu="a processor", cores=2, memory_bytes=2**34)
    return RankFacts(
        rank=rank, host=f"host{rank // 4}", hardware=hardware, peak_flops_per_sec=1e9 + rank
    )


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
    return [*map(_facts, range(8)), *samples(iterations=10), *traces]


def _json(folder: Path, name: RunFile) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / name).read_text())
    return content


def test_a_folder_has_everything_that_the_reader_reads(tmp_path: Path) -> None:
    _written(tmp_path / "a" / "run", _with_traces())
    tables = read_run(tmp_path / "a" / "run")
    assert len(tables.metrics) == 10
    assert len(tables.metrics_by_rank) == 80
    assert tables.evaluations["iteration"].tolist() == [9]
    again = load_experiment_config(tables.config_file)
    assert again.model.module_parallelisms == CONFIG.model.module_parallelisms
    assert len(read_trace(tables.directory)) == 16
    written = {path.name for path in tables.directory.iterdir()}
    assert written == {str(name) for name in RunFile} - {RunFile.ERROR}


def test_the_info_says_what_ran_where_and_how_far(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    assert _json(tmp_path, RunFile.INFO)["status"] == "running"
    for sample in _with_traces():
        writer.take(sample)
    assert _json(tmp_path, RunFile.INFO)["hosts"] == ["host0", "host1"]
    writer.finish(_with_traces(), 12.3456, None)
    info = _json(tmp_path, RunFile.INFO)
    assert info["digests"] == {RunFile.METRICS: digest_of_file(tmp_path / RunFile.METRICS)}
    assert (info["world_size"], info["seconds"], info["status"]) == (8, 12.346, "completed")
    assert info["iterations"] == {"planned": 10, "completed": 10}
    assert (info["seed"], info["warmup_iterations"]) == (CONFIG.runtime.seed, 2)
    assert (info["samples_per_step"], info["tokens_per_step"]) == (8, 8 * 42)
    assert info["hardware"]["cpu"] == "a processor"
    assert info["hardware"]["accelerators"] == []
    assert info["peak_flops_per_sec"] == 1e9, "the slowest rank's"
    images = info["modules"]["images"]
    assert images["ranks"] == list(range(8))
    assert (images["tensor_parallel"], images["data_parallel"]) == (1, 8)
    assert images["parameters"] > 1000
    assert info["git"] == git_state(Path())
    assert info["versions"]["megatron-core"] == version("megatron-core")
    assert info["started"] <= info["finished"]


def test_profiles_lie_where_tensorboard_looks(tmp_path: Path) -> None:
    for name, given in (("by_default", None), ("given", str(tmp_path / "boards" / "given"))):
        config = CONFIG.model_copy(deep=True)
        config.runtime.tensorboard_dir, config.runtime.loggers = given, ["tensorboard"]
        writer = RunWriter(Folder.claim(tmp_path / name), RunSetting(config, PLAN))
        for part in range(2):
            writer.take(ProfileSample(rank=0, name="r0", part=part, parts=2, content=b"ab"))
        writer.release()
        board = Path(given or tmp_path / name / "tensorboard")
        for place in (tmp_path / name / "profile", board / "profile"):
            assert (place / "r0").read_bytes() == b"abab"


def test_a_folder_outside_git_has_no_revision(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None


def test_a_run_that_failed_keeps_what_was_measured_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values of variables that look like secrets are in none of its files."""
    monkeypatch.setenv("HUB_TOKEN", "hf_secret")
    monkeypatch.setenv("HUB_TOKEN_SHORT", "collate")
    monkeypatch.setenv("WEIGHTS", "Traceback")
    made = samples(iterations=3)
    trace = "Traceback\n  in collate, https://me:hf_secret@hub/\n"
    failure = RankError(3, "MemoryError", "no memory left for hf_secret", trace)
    _written(tmp_path, made, failure)
    assert len(read_run(tmp_path).metrics) == 3
    error = _json(tmp_path, RunFile.ERROR)
    assert (error["type"], error["cause"], error["rank"], error["step"]) == (
        "RankError",
        "MemoryError",
        3,
        3,
    )
    assert error["message"] == "rank 3 raised MemoryError: no memory left for [HUB_TOKEN]"
    assert error["traceback"] == "Traceback\n  in collate, https://me:[HUB_TOKEN]@hub/\n"
    for file in tmp_path.iterdir():
        assert b"hf_secret" not in file.read_bytes()
    assert _json(tmp_path, RunFile.INFO)["status"] == "failed"


@rows(
    "error, status",
    (None, "stopped"),
    (RunAborted("aborted"), "stopped"),
    (TimeLimitError(3.0), "failed"),
)
def test_a_run_that_ended_early_says_how(
    tmp_path: Path, error: Exception | None, status: str
) -> None:
    _written(tmp_path, samples(iterations=3), error)
    assert _json(tmp_path, RunFile.INFO)["status"] == status
    assert (tmp_path / RunFile.ERROR).exists() == (status == "failed")


def test_rows_are_there_before_the_run_ends(tmp_path: Path) -> None:
    """What a killed client leaves: whole lines, also of an iteration that few ranks reported."""
    writer = _writer(tmp_path)
    for sample in samples(iterations=2) + [step(2, rank, 0.5) for rank in range(3)]:
        writer.take(sample)
    tables = read_run(tmp_path)
    assert tables.metrics["iteration"].tolist() == [0, 1]
    assert len(tables.metrics_by_rank) == 2 * 8 + 3
    assert (tmp_path / RunFile.METRICS).read_bytes().endswith(b"\n")


def test_the_rows_appended_are_those_of_the_whole_table(tmp_path: Path) -> None:
    made = [step(number, rank, 1.0) for number in range(4) for rank in range(8)]
    writer = _writer(tmp_path)
    for sample in made:
        writer.take(sample)
    appended = read_run(tmp_path)
    writer.finish(made, 1.0, None)
    whole = read_run(tmp_path)
    for name in ("metrics", "metrics_by_rank"):
        one, two = getattr(appended, name), getattr(whole, name)
        assert one[list(two.columns)].equals(two), name


def test_a_row_with_a_new_column_widens_the_table(tmp_path: Path) -> None:
    table = AppendedTable(tmp_path / "a.csv", ["iteration"])
    table.append([{"iteration": 0}])
    table.append([{"iteration": 1, "checkpoint_time": 0.5}])
    table.append([{"iteration": 2}])
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines == ["iteration,checkpoint_time", "0,", "1,0.5", "2,"]


def test_a_disk_that_fills_up_leaves_whole_lines_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = AppendedTable(tmp_path / "a.csv", ["iteration", "loss"])
    really = os.write

    def half(descriptor: int, content: bytes) -> int:
        return really(descriptor, content[: len(content) // 2])

    with monkeypatch.context() as full:
        full.setattr(seams.WRITE_TABLE, half)
        with pytest.raises(OSError, match="No space left"):
            table.append([{"iteration": 0, "loss": 2.0}])
        assert not (tmp_path / "a.csv").exists()  # an empty one would be refused by its reader
    table.append([])
    before = (tmp_path / "a.csv").read_bytes()
    with monkeypatch.context() as full:
        full.setattr(seams.WRITE_TABLE, half)
        with pytest.raises(OSError, match="No space left"):
            table.append([{"iteration": 1, "loss": 1.0}])
        assert (tmp_path / "a.csv").read_bytes() == before
    table.append([{"iteration": 2, "loss": 0.5}])
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines == ["iteration,loss", "0,2.0", "1,1.0", "2,0.5"]


def test_without_the_performance_monitor_there_are_no_metrics(tmp_path: Path) -> None:
    _written(tmp_path, [StepSample(0, loss=1.0)])
    assert not (tmp_path / RunFile.METRICS).exists()
    assert (tmp_path / RunFile.CONFIG).exists()


def test_a_file_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = samples(iterations=3)
    writer = _writer(tmp_path)
    for sample in made:
        writer.take(sample)
    before = (tmp_path / RunFile.METRICS).read_text()

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("csv.DictWriter.writerows", full)
        with pytest.raises(OSError, match="no space left"):
            writer.finish(made, 1.0, RuntimeError("the reason"))
        assert (tmp_path / RunFile.METRICS).read_text() == before
        assert _json(tmp_path, RunFile.ERROR)["message"] == "the reason"
    assert not [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")]
    writer.finish(made, 1.0, None)
    assert len(read_run(tmp_path).metrics) == 3


def test_an_earlier_run_is_set_aside_whole(tmp_path: Path) -> None:
    _written(tmp_path, _with_traces(), RuntimeError("the first run failed"))
    (tmp_path / "profile").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    started = _json(tmp_path, RunFile.INFO)["started"]
    for _ in range(2):
        _written(tmp_path, samples(iterations=10))
    here = {path.name for path in tmp_path.iterdir()}
    tables = {RunFile.METRICS, RunFile.METRICS_BY_RANK, RunFile.EVALUATIONS}
    assert here == {*tables, RunFile.CONFIG, RunFile.INFO, RunFile.HEALTH, EARLIER, "notes.txt"}
    aside = sorted((tmp_path / EARLIER).iterdir())
    assert len(aside) == 2
    assert _json(aside[0], RunFile.ERROR)["message"] == "the first run failed"
    assert _json(aside[0], RunFile.INFO)["started"] == started
    assert {"profile", RunFile.TRACE} <= {path.name for path in aside[0].iterdir()}


def test_no_link_leads_out_of_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.csv").write_text("precious")
    run = tmp_path / "run"
    run.mkdir()
    for name in (RunFile.METRICS, RunFile.CONFIG, f".{RunFile.INFO}.part"):
        (run / name).symlink_to(outside / "precious.csv")
    (run / EARLIER).symlink_to(outside)
    writer = _writer(run)
    made = samples(iterations=2)
    writer.take(made[0])
    (run / RunFile.METRICS_BY_RANK).unlink()
    (run / RunFile.METRICS_BY_RANK).symlink_to(outside / "precious.csv")
    for sample in made[1:]:
        writer.take(sample)
    writer.finish(made, 1.0, None)
    assert (outside / "precious.csv").read_text() == "precious"
    assert [path.name for path in outside.iterdir()] == ["precious.csv"]
    assert len(read_run(run).metrics) == 2


def test_a_folder_that_is_deleted_during_the_run_is_made_again(tmp_path: Path) -> None:
    run, made = tmp_path / "run", samples(iterations=10)
    writer = _writer(run)
    for sample in made[:8]:
        writer.take(sample)
    for path in run.iterdir():
        path.unlink()
    run.rmdir()
    for sample in made[8:]:
        writer.take(sample)
    writer.finish(made, 1.0, None)
    assert len(read_run(run).metrics) == 10
    assert load_experiment_config(run / RunFile.CONFIG).name == CONFIG.name


def test_two_runs_do_not_write_one_folder(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    with pytest.raises(ConfigError, match="another run writes it at the moment"):
        Folder.claim(tmp_path)
    writer.finish([], 1.0, None)
    Folder.claim(tmp_path).release()


def test_two_runs_of_one_name_in_one_second_have_different_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len({new_run_folder("digits") for _ in range(3)}) == 3
    assert len({new_root(tmp_path / "b") for _ in range(3)}) == 3


@rows("name", "..", "", "a/b", "../up", "two\nlines", "x" * 300, ".hidden")
def test_a_name_that_is_no_folder_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="results cannot have a folder of this name"):
        new_run_folder(name)


def test_folders_that_cannot_be_written_are_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    gone = tmp_path / "gone"
    gone.mkdir()
    bad: list[str] = [
        str(tmp_path / "file"),
        str(tmp_path / "file" / "below"),
        "/proc/mimokit",
        str(tmp_path / ("x" * 300)),
        "a\0b",
    ]
    for place in bad:
        with pytest.raises(ConfigError, match="results cannot be written there") as error:
            Folder.claim(place)
        assert len(error.value.problems) == 1
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match="results cannot be written there"):
        Folder.claim("here")


class _Logger:
    """Keeps what it is given; raises at a row if asked to."""

    def __init__(self, fails_at: int = -1) -> None:
        self.calls: list[str] = []
        self._fails_at = fails_at

    def start(self, *_: object) -> None:
        self.calls.append("start")

    def step(self, row: dict[str, float]) -> None:
        if row["iteration"] == self._fails_at:
            raise ConnectionError("no network")
        self.calls.append(f"step {row['iteration']}")

    def evaluation(self, row: dict[str, Any]) -> None:
        self.calls.append(f"evaluation {row['iteration']}")

    def finish(self, status: str) -> None:
        self.calls.append(status)


def test_loggers_get_each_row_once_and_one_that_raises_is_dropped(tmp_path: Path) -> None:
    good, bad = _Logger(), _Logger(fails_at=1)
    writer, made = _writer(tmp_path, good, bad), samples(iterations=10)
    number = made.index(next(one for one in made if one.iteration == 2)) - 1
    for sample in made[:number]:
        writer.take(sample)
    with pytest.warns(UserWarning, match=r"_Logger raised ConnectionError \(no network\)"):
        writer.take(made[number])
    for sample in made[number + 1 :]:
        writer.take(sample)
    writer.finish(made, 1.0, None)
    writer.finish(made, 1.0, None)
    steps = [f"step {number}" for number in range(10)]
    assert good.calls == ["start", *steps, "evaluation 9", "completed"]
    assert bad.calls == ["start", "step 0"]
    assert len(read_run(tmp_path).metrics) == 10


def test_the_columns_of_every_module_of_the_plan_are_in_the_first_heading(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    writer.take(StepSample(0, total_time=1.0, rank=0))
    heading = (tmp_path / RunFile.METRICS_BY_RANK).read_text().splitlines()[0].split(",")
    assert heading[:3] == ["iteration", "total_time", "forward_time"]
    assert {module_column(name, "forward_time") for name in PLAN.modules} <= set(heading)


def test_an_iteration_is_complete_when_its_last_rank_has_reported(tmp_path: Path) -> None:
    made = [step(number, rank, 1.0) for number in range(3) for rank in range(8)]
    _written(tmp_path, made[:-1])
    assert _json(tmp_path, RunFile.INFO)["iterations"] == {"planned": 10, "completed": 2}
