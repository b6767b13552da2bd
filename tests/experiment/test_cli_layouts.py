"""`mimokit search`, `predict`, `import`, `export`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

import mimokit
from mimokit.experiment.cli import app

PRESET = "preset:llava_7b_heterogeneous"
SAMPLES = ["--seq-length", "4096", "--global-batch", "16"]


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "400"})


def test_search_shows_layouts_reasons_and_why() -> None:
    done = call("search", "llava-1.5-7b", "--gpus", "4", "--gpu", "h100", "--top", "3", *SAMPLES)
    assert done.exit_code == 0, done.stderr
    assert "Best layouts" in done.stdout
    assert "Dropped" in done.stdout
    assert "One step away" in done.stdout


def test_search_of_an_experiment_writes_an_experiment(tmp_path: Path) -> None:
    file = tmp_path / "best.yaml"
    options = ["--gpus", "8", "--mode", "heterogeneous", "--export", "yaml", "--output", str(file)]
    done = call("search", PRESET, *options)
    assert done.exit_code == 0, done.stderr
    assert mimokit.plan(file).deployment_mode == "heterogeneous"


def test_search_as_json() -> None:
    done = call("search", "llama-3.2-1b", "--gpus", "2", "--json", *SAMPLES)
    found = json.loads(done.stdout)
    assert found["finalists"][0]["layout"]["gpus"] == 2
    assert found["complete"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["search", "llama-3.2-1b", "--gpus", "0", *SAMPLES], "gpus is 0"),
        (["search", "llama-3.2-2b", "--gpus", "8", *SAMPLES], "did you mean"),
        (["search", "llama-3.2-1b", "--gpus", "8"], "give seq_length and global_batch"),
        (["search", "llama-3.2-1b", "--gpus", "8", "--seq-length", "9"], "global_batch is 0"),
        (["search", "llama-3.1-405b", "--gpus", "8", *SAMPLES], "GPUs would do"),
        (["search", PRESET, "--gpus", "8", "--gpu", "h1000"], "h100"),
        (["search", PRESET, "--gpus", "8", "--mode", "mixed"], "there is no such mode"),
        (["predict", PRESET, "--gpu", "b1000"], "there is no such GPU"),
        (["predict", "nothing.py"], "cannot be read"),
        (["import", "nothing.sh"], "cannot be read"),
        (["export", PRESET, "--to", "toml"], "there is no such format"),
        (["export", "preset:llava_7b_colocated", "--to", "bridge"], "this layout is colocated"),
        (["export", PRESET, "--to", "torchrun"], "name 3 different ones"),
    ],
)
def test_refusals_are_one_sentence(words: list[str], sentence: str) -> None:
    done = call(*words)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_predict_an_experiment() -> None:
    done = call("predict", PRESET, "--gpu", "h100", "--price", "2")
    assert done.exit_code == 0, done.stderr
    for text in ("tokens/s", "dollars per million tokens", "Step time", "optimizer"):
        assert text in done.stdout
    assert json.loads(call("predict", PRESET, "--json").stdout)["layout"]["gpus"] == 24


def test_out_to_bridge_and_in_again(tmp_path: Path) -> None:
    file = tmp_path / "layout.py"
    assert call("export", PRESET, "--to", "bridge", "--output", str(file)).exit_code == 0
    read = json.loads(call("import", str(file), "--json").stdout)
    assert read["gpus"] == 24
    assert read["modules"]["language"]["pipeline_parallel"] == 2
    assert call("predict", str(file)).exit_code == 2
    done = call("predict", str(file), "--model", "llava-1.5-7b")
    assert done.exit_code == 0, done.stderr


def test_megatron_arguments_come_in(tmp_path: Path) -> None:
    file = tmp_path / "arguments.sh"
    file.write_text("pretrain_gpt.py --tensor-model-parallel-size 4 --micro-batch-size 2\n")
    done = call("import", str(file), "--gpus", "8")
    assert done.exit_code == 0, done.stderr
    assert "language TP4 DP2 micro-batch 2 on 8 GPUs" in done.stdout
    file.write_text("--tensor-model-parallel-size 'open")
    assert "no closing quotation" in call("import", str(file), "--gpus", "8").stderr


def test_slurm() -> None:
    done = call("export", PRESET, "--to", "slurm", "--script", "train.py")
    assert "#SBATCH --nodes=3" in done.stdout
