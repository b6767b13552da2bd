"""`mimokit calibrate`: constants from folders of runs, and the file that predictions take."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from mimokit.cli.main import app
from mimokit.prediction.hardware import Efficiency, Hardware, RankLink, save_hardware
from tests.analysis.planted_runs import CONFIGS, Planted, write_run
from tests.rows import rows

LINK = RankLink(1e9, 1e-4)
MACHINE = Hardware(
    "a rank of a machine", 4.0, 1e10, {"fp32": 4e10}, 8, LINK, LINK,
    Efficiency({"fp32": 0.5}, 0.5, 0.5, 0.5, 0.5, 1e-5),
)  # fmt: skip
COLUMNS = "model,seq_length,global_batch_size,dp,seconds"
COLOCATED = str(CONFIGS / "digits_colocated.yaml")


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "400"})


def calibrate(folder: Path, *more: str, stack: str = "megatron-core") -> Result:
    gpu = str(save_hardware(MACHINE, folder.parent / "machine.json"))
    return call("calibrate", "--from", str(folder), "--gpu", gpu, "--software", stack, *more)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return a folder of two runs whose steps take 0.2 and 0.3 s."""
    planted = Planted(iterations=12, forward={"images": 0.02, "language_module": 0.05})
    write_run(tmp_path / "runs" / "colocated", planted)
    write_run(tmp_path / "runs" / "heterogeneous", replace(planted, mode="heterogeneous"))
    return tmp_path / "runs"


def test_folders_of_runs_become_a_file_that_predictions_take(runs: Path) -> None:
    own = runs.parent / "own.json"
    done = calibrate(runs, "--save", str(own))
    assert done.exit_code == 0, done.stderr
    assert "matrix_share: 1 becomes " in done.stdout
    assert f"predict and search take it as --software {own}." in done.stdout
    as_json = json.loads(calibrate(runs, "--json").stdout)
    assert as_json["before"].keys() == as_json["left_out"].keys() == {"colocated", "heterogeneous"}
    gpu = str(runs.parent / "machine.json")
    before, after = (
        json.loads(call("predict", COLOCATED, "--gpu", gpu, "--software", one, "--json").stdout)
        for one in ("megatron-core", str(own))
    )
    change = (1 + as_json["after"]["colocated"]) / (1 + as_json["before"]["colocated"])
    assert after["seconds"] / before["seconds"] == pytest.approx(change)
    refused = call("predict", COLOCATED, "--gpu", "h100", "--software", str(own))
    assert refused.exit_code != 0
    assert "it was calibrated on a rank of a machine" in refused.stderr


def test_a_search_refuses_the_calibration_of_another_gpu(runs: Path) -> None:
    own = runs.parent / "own.json"
    assert calibrate(runs, "--save", str(own)).exit_code == 0
    refused = call("search", COLOCATED, "--gpus", "8", "--gpu", "h100", "--software", str(own))
    assert refused.exit_code != 0
    assert "it was calibrated on a rank of a machine" in refused.stderr
    assert calibrate(runs, "--save", str(own)).exit_code == 0  # the same again
    again = calibrate(runs, "--save", str(own), stack="megatron-bridge")
    assert again.exit_code != 0
    assert "it exists already, and is not written over" in again.stderr


@rows(
    "columns, row, sentence",
    ("model,dp,seconds", "llama-3-8b,8,1.0", "column 'seq_length' is missing"),
    (COLUMNS, "llama-3-8b,4096,64,8,9000", "it looks like milliseconds"),
    (COLUMNS, "llama-3-8b,4096,64,7,9", "line 2: Module 'llama-3-8b'"),
)
def test_a_table_that_cannot_be_right_is_refused(
    tmp_path: Path, columns: str, row: str, sentence: str
) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(f"{columns}\n{row}\n{row}\n", encoding="utf-8")
    refused = call("calibrate", "--from", str(file), "--gpu", "h100")
    assert refused.exit_code != 0
    assert sentence in refused.stderr
    assert "Traceback" not in refused.stderr


def test_folders_that_say_nothing_are_refused_in_a_sentence(runs: Path) -> None:
    for folder, sentence in (
        (runs / "colocated", "there is 1 run, and at least 2 are needed"),
        (runs.parent / "nothing", "nothing"),
    ):
        refused = calibrate(folder)
        assert refused.exit_code != 0
        assert sentence in refused.stderr
        assert "Traceback" not in refused.stderr
