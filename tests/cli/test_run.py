"""`mimokit run` leaves what it says."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

import mimokit.cluster
from tests import seams
from tests.cli.call import call
from tests.rows import rows

if TYPE_CHECKING:
    from mimokit.cluster import EngineCluster

CONFIGS = Path(__file__).parents[2] / "configs"


def _write(file: Path, *, replicas: int = 2, **runtime: object) -> Path:
    sizes = {"tensor_parallel": 1, "data_parallel": replicas}
    content = {
        "extends": str(CONFIGS / "digits_homogeneous.yaml"),
        "model": {"module_parallelisms": {"images": sizes, "language_module": sizes}},
        "runtime": {"num_iterations": 3, "warmup_iterations": 1, **runtime},
    }
    file.write_text(yaml.safe_dump(content))
    return file


def _run(*arguments: object) -> tuple[int, str]:
    ended = call("run", *arguments)
    return ended.exit_code, " ".join(ended.output.split())


@pytest.fixture
def on_engines(cluster: EngineCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run commands on the engines of the tests."""
    monkeypatch.setattr(seams.ENGINE_CLUSTER, lambda *_, **__: nullcontext(cluster))


@pytest.mark.usefixtures("on_engines")
def test_a_sweep_names_what_cannot_run_and_runs_the_rest(tmp_path: Path) -> None:
    from mimokit.analysis import read_run, read_trace

    experiments = tmp_path / "my experiments"
    experiments.mkdir()
    _write(experiments / "baseline.yaml", num_iterations=2)
    _write(experiments / "good.yaml")
    _write(experiments / "raises.yaml", learning_rate=1e30)
    _write(experiments / "large.yaml", replicas=32)
    (experiments / "broken.yaml").write_text("model: [")
    results = experiments / ".." / "my experiments" / "results"
    arguments = ("--experiments-dir", experiments, "--results-dir", results)
    status, said = _run(*arguments, "--trace")
    assert status == 1
    before, _, after = said.partition("good: started on 2 ranks")
    assert "broken cannot run:" in before
    assert "its world has 32 ranks and the cluster has 2 engines" in before
    assert "Not completed experiment why" in after
    assert "raises failed" in after
    (root,) = results.iterdir()
    assert set(read_trace(root / "good" / "trace.json")["rank"]) == {0, 1}
    assert len(read_run(root / "good").metrics) == 3
    assert {path.name for path in root.iterdir()} == {
        *("good", "raises", "large", "broken"),
        *("sweep.json", "all_experiments.csv"),
    }
    error = json.loads((root / "raises" / "error.json").read_text())
    assert error["cause"] == "DivergedError"
    assert error["rank"] is not None


@pytest.mark.usefixtures("on_engines")
def test_training_goes_on_from_the_newest_run_of_a_folder(tmp_path: Path) -> None:
    results = tmp_path / "results"
    first = _write(tmp_path / "first.yaml", checkpoint={"interval": 1}, num_iterations=2)
    assert _run(first, "--results-dir", results)[0] == 0
    (run,) = results.iterdir()
    (results / "run_29990101_000000" / "first").mkdir(parents=True)  # has nothing to go on from
    longer = _write(tmp_path / "longer.yaml")
    status, said = _run(longer, "--resume", results, "--results-dir", tmp_path / "again")
    assert (status, f"goes on from {run / 'first'}" in said) == (0, True), said
    from mimokit.analysis import read_run

    (metrics,) = (tmp_path / "again").glob("*/longer")
    assert list(read_run(metrics).metrics["iteration"]) == [2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give a FILE, or --experiments-dir DIR, or --resume FOLDER"),
        (("a.yaml", "--config", "b.yaml"), "not several"),
        (("--experiments-dir", "nowhere"), "the folder does not exist"),
        (("--resume", "nowhere"), "it is not the folder of a sweep"),
        (("nowhere.yaml",), "it does not exist"),
        ((str(CONFIGS / "digits_homogeneous.yaml"), "--resume", "nowhere"), "no whole checkpoint"),
        (
            (str(CONFIGS / "digits_homogeneous.yaml"), "--restarts", "2"),
            "restarts is 2, but checkpoint is not given",
        ),
        (("preset:llava_7b_colocated", "--engines", "2"), "the cluster has 2 engines"),
    ],
)
def test_input_that_is_rejected_starts_nothing(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, output = _run(*arguments)
    assert (status, said in output.replace("│ ", "")) == (2, True), output
    assert not list(tmp_path.iterdir())


def test_a_strict_sweep_runs_none(tmp_path: Path) -> None:
    _write(tmp_path / "good.yaml")
    _write(tmp_path / "zero.yaml", num_iterations=0)
    results = tmp_path / "results"
    status, said = _run("--experiments-dir", tmp_path, "--results-dir", results, "--strict")
    assert status == 2
    assert "zero cannot run: Section 'runtime': num_iterations is 0" in said
    assert not results.exists()


@pytest.fixture
def no_engines(monkeypatch: pytest.MonkeyPatch) -> None:

    def start(*arguments: object, **options: object) -> None:
        raise AssertionError("engines were started")

    monkeypatch.setattr(mimokit.cluster, "EngineCluster", start)


@pytest.mark.usefixtures("no_engines")
def test_a_sweep_of_which_all_are_rejected_leaves_an_error_for_each(tmp_path: Path) -> None:
    from mimokit.experiment.sweeps.folder import read_sweep

    _write(tmp_path / "zero.yaml", num_iterations=0)
    (tmp_path / "broken.yaml").write_text("model: [")
    results = tmp_path / "results"
    status, said = _run("--experiments-dir", tmp_path, "--results-dir", results)
    assert status == 2
    assert "zero cannot run: Section 'runtime': num_iterations is 0" in said
    assert "Nothing is left to run." in said
    (root,) = results.iterdir()
    assert f"Results are in {root}" in said
    for name in ("zero", "broken"):
        error = json.loads((root / name / "error.json").read_text())
        assert error["sentences"], name
        assert name in {one["name"] for one in read_sweep(root)["experiments"]}
    assert (root / "all_experiments.csv").exists()


@pytest.mark.usefixtures("no_engines")
def test_a_single_rejected_config_leaves_an_error_where_results_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = _write(tmp_path / "zero.yaml", num_iterations=0)
    assert _run(file)[0] == 2
    assert list(tmp_path.iterdir()) == [file]
    assert _run(file, "--results-dir", "results", "--strict")[0] == 2
    assert list(tmp_path.iterdir()) == [file]
    assert _run("--config", file, "--results-dir", "results")[0] == 2
    (error,) = tmp_path.glob("results/run_*/zero/error.json")
    assert "num_iterations is 0" in json.loads(error.read_text())["sentences"][0]


@pytest.mark.usefixtures("no_engines")
def test_resuming_a_complete_sweep_starts_no_engines(tmp_path: Path) -> None:
    from mimokit.experiment.sweeps.experiments import choose, collect
    from mimokit.experiment.sweeps.prepared_sweep import prepare_sweep

    file = _write(tmp_path / "good.yaml")
    prepared = prepare_sweep(choose(collect(file), 2), results_dir=tmp_path / "results")
    prepared.folder.release()
    root = prepared.folder.path
    (root / "good").mkdir()
    (root / "good" / "experiment_info.json").write_text('{"status": "completed"}')
    status, said = _run("--resume", root)
    assert status == 0
    assert "good: skipped (complete since an earlier sweep)" in said
    assert "Nothing is left to run." in said
    assert not (root / "good" / "error.json").exists()


def test_what_cannot_be_saved_is_rejected_before_engines_start(tmp_path: Path) -> None:
    file = _write(tmp_path / "one.yaml")
    status, said = _run(file, "--save-hf", tmp_path / "new")
    assert status == 2
    assert "must start from the weights of a language model" in said
    _write(tmp_path / "two.yaml")
    status, said = _run("--experiments-dir", tmp_path, "--save-hf", tmp_path / "new")
    assert status == 2
    assert "is one directory, and there are 2 experiments" in said


@rows(
    "command",
    ["check", "--tp", "1"], ["config"], ["import"], ["memory"], ["plan"], ["predict"], ["run"],
    ["search", "--gpus", "8"], ["verify"], ["weights"],
)  # fmt: skip
def test_a_name_that_no_file_can_have_is_refused(command: list[str]) -> None:
    done = call(command[0], "x" * 300, *command[1:])
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2
    assert "x" * 60 in done.stderr
