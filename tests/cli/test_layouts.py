"""`mimokit search`, `predict`, `import`, `export`."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

import mimokit
from mimokit.cli import search_command
from mimokit.cli.layout_files import searched
from mimokit.cli.main import app
from mimokit.layout_search import SearchProgress
from tests.rows import rows

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
    heading = next(line for line in done.stdout.splitlines() if "time per step" in line)
    assert "band" in heading
    rows = re.findall(r"[\d.]+ m?s +[\d.]+ m?s to [\d.]+ m?s", done.stdout)
    assert len(rows) == 3  # a band per layout


def test_search_of_an_experiment_writes_an_experiment(tmp_path: Path) -> None:
    file = tmp_path / "best.yaml"
    options = ["--gpus", "4", "--mode", "heterogeneous", "--export", "yaml", "--output", str(file)]
    done = call("search", PRESET, *options)
    assert done.exit_code == 0, done.stderr
    assert mimokit.plan(file).deployment_mode == "heterogeneous"


def test_predict_explains_each_line() -> None:
    done = call("predict", PRESET, "--explain")
    assert done.exit_code == 0, done.stderr
    lines = str(mimokit.predict(PRESET).explain()).splitlines()
    assert lines[0].startswith("Not stated in runtime.recipe")
    assert all(line in done.stdout for line in lines)
    told = json.loads(call("predict", PRESET, "--explain", "--json").stdout)["explanation"]
    assert {row["module"] for row in told["rows"]} == {"images", "language_module"}
    assert "explanation" not in json.loads(call("predict", PRESET, "--json").stdout)


def seconds_of(*words: str) -> float:
    done = call("predict", *words, "--json")
    assert done.exit_code == 0, done.stderr
    return float(json.loads(done.stdout)["seconds"])


def test_what_a_search_writes_is_predicted_as_it_was_found(tmp_path: Path) -> None:
    file = tmp_path / "best.yaml"
    words = ["qwen3-30b-a3b", "--gpus", "8", "--gpu", "h200", "--price", "2.5", *SAMPLES]
    done = call("search", *words, "--export", "yaml", "--output", str(file), "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[0])["finalists"][0]
    read = json.loads(call("predict", str(file), "--json").stdout)
    assert read["seconds"] == found["seconds"]
    assert read["peak_memory"] == found["peak_memory"]
    assert read["dollars_per_million_tokens"] == found["dollars_per_million_tokens"]
    assert seconds_of(str(file), "--gpu", "b200") != found["seconds"]  # what is given comes first
    again = json.loads(call("search", str(file), "--gpus", "8", "--json").stdout)
    assert again["finalists"][0]["seconds"] == found["seconds"]


def test_a_step_can_be_another_than_the_files(tmp_path: Path) -> None:
    file = tmp_path / "longer.yaml"
    options = ["--to", "yaml", "--seq-length", "8192", "--output", str(file)]
    assert call("export", PRESET, *options).exit_code == 0
    assert seconds_of(str(file)) == seconds_of(PRESET, "--seq-length", "8192")
    assert seconds_of(str(file)) > seconds_of(PRESET)


COLOCATED_STEP = ["--seq-length", "16384", "--global-batch", "128"]
"""With it the best colocated layout of Qwen3-VL 30B on 64 H100 has a pipeline."""


def test_a_layout_that_cannot_be_written_is_shown_nevertheless() -> None:
    options = ["--gpus", "4", "--gpu", "h100", "--mode", "colocated", "--export", "bridge"]
    done = call("search", "llava-1.5-7b", *options, *SAMPLES)
    assert done.exit_code == 2
    assert "Best layouts" in done.stdout
    assert "this layout is colocated; choose a heterogeneous one" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_colocated_pipeline_that_was_found_is_planned_and_predicted_again(tmp_path: Path) -> None:
    file = tmp_path / "found.yaml"
    options = ["--gpus", "64", "--gpu", "h100", "--mode", "colocated", "--export", "yaml"]
    found = call(
        "search", "qwen3-vl-30b-a3b", *options, "--output", str(file), "--json", *COLOCATED_STEP
    )
    assert found.exit_code == 0, found.output
    best = json.loads(found.stdout.splitlines()[0])["finalists"][0]
    assert list(best["layout"]["modules"].values())[-1]["pipeline_parallel"] > 1
    assert seconds_of(str(file)) == best["seconds"]
    planned = call("plan", str(file))
    assert re.search("run forward before .* and backward after", " ".join(planned.stdout.split()))


def test_another_model_takes_the_place_of_the_files(tmp_path: Path) -> None:
    file = tmp_path / "qwen.yaml"
    options = ["--to", "yaml", "--model", "qwen2.5-vl-7b", "--output", str(file)]
    assert call("export", PRESET, *options).exit_code == 0
    assert seconds_of(str(file)) == seconds_of(PRESET, "--model", "qwen2.5-vl-7b")


def test_a_search_on_a_terminal_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    with search_command._progress() as show:
        show(SearchProgress(0.5, 123_456, 1.0))
    assert "123,456 layouts" in terminal.getvalue()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with search_command._progress() as show:
        assert show is None


def test_search_as_json() -> None:
    done = call("search", "llama-3.2-1b", "--gpus", "2", "--json", *SAMPLES)
    found = json.loads(done.stdout)
    assert found["finalists"][0]["layout"]["gpus"] == 2
    assert found["complete"]


@rows(
    "words, sentence",
    (["search", "llama-3.2-1b", "--gpus", "0", *SAMPLES], "gpus is 0"),
    (["search", "llama-3.2-2b", "--gpus", "8", *SAMPLES], "did you mean"),
    (["search", "llama-3.2-1b", "--gpus", "8"], "give seq_length and global_batch_size"),
    (["search", "llama-3.2-1b", "--gpus", "8", "--seq-length", "9"], "give --global-batch"),
    (["search", "llama-3.1-405b", "--gpus", "8", *SAMPLES], "GPUs would do"),
    (["search", PRESET, "--gpus", "8", "--gpu", "h1000"], "h100"),
    (["search", PRESET, "--gpus", "8", "--mode", "mixed"], "Mode 'mixed': it does not exist"),
    (["predict", PRESET, "--gpu", "b1000"], "GPU 'b1000': it does not exist"),
    (["predict", "layout.py"], "cannot be read (Python is not read)"),
    (["import", "nothing.sh"], "cannot be read"),
    (["export", PRESET, "--to", "toml"], "'toml': it does not exist"),
    (["export", "preset:llava_7b_colocated", "--to", "bridge"], "this layout is colocated"),
    (["export", PRESET, "--to", "torchrun"], "name 3 different ones"),
    (["export", PRESET, "--to", "yaml", "--output", "/nowhere/a.yaml"], "cannot be written"),
    (["predict", PRESET, "--global-batch", "7"], "fill no whole number of micro-batches"),
    (["predict", PRESET, "--price", "-1"], "price_per_gpu_hour is -1.0; it must be greater"),
    (["search", PRESET, "--gpus", "8", "--price", "0"], "price_per_gpu_hour is 0.0"),
    (["predict", PRESET, "--seq-length", "0"], "seq_length is 0"),
    (["predict", PRESET, "--model", "llama-3-8b"], "no such module"),
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


def test_a_price_that_is_given_comes_before_that_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "priced.yaml"
    words = ["llama-3-8b", "--gpus", "8", "--gpu", "h100", "--price", "2.5", *SAMPLES]
    assert call("search", *words, "--export", "yaml", "--output", str(file)).exit_code == 0
    prices = [searched(str(file), price=price).prediction for price in (None, 4.0)]
    assert [one.price_per_gpu_hour for one in prices] == [2.5, 4.0]
