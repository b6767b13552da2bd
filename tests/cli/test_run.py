"""`mimokit run` leaves what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from mimokit.analysis import read_run, read_trace
from mimokit.cli.main import app

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
    ended = CliRunner().invoke(app, ["run", *map(str, arguments)])
    return ended.exit_code, " ".join(ended.output.split())


def test_a_sweep_names_what_cannot_run_and_runs_the_rest(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give a FILE, or --experiments-dir DIR, or --resume FOLDER"),
        (("a.yaml", "--config", "b.yaml"), "not several"),
        (("--experiments-dir", "nowhere"), "there is no such folder"),
        (("--resume", "nowhere"), "it is not the folder of a sweep"),
        (("nowhere.yaml",), "it does not exist"),
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
