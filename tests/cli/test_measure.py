"""`mimokit measure`, and `predict` of an experiment that says what its samples are made of."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from mimokit.cli.main import app
from tests.rows import rows


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_mix_is_measured_drawn_and_written(tmp_path: Path) -> None:
    done = call("measure", "videos", "--output", tmp_path / "mix.parquet")
    assert done.exit_code == 0, done.output
    assert "videos: 10,000 samples" in done.stdout
    assert "vision.frames and vision.seconds: r = 1.00" in done.stdout
    assert "Source: Panda-70M, Chen et al. 2024 (arXiv 2402.19479)" in done.stdout
    assert "Supposed: 1 frame a second" in done.stdout
    assert "vegaEmbed" in (tmp_path / "mix.html").read_text(encoding="utf-8")
    again = json.loads(call("measure", tmp_path / "mix.parquet", "--json").stdout)
    first = json.loads(call("measure", "videos", "--json").stdout)
    assert again["columns"] == first["columns"]


@rows(
    "words, sentence",
    (("nothing.parquet",), "there is no such file; write it with mimokit measure."),
    (("videos", "--samples", 0), "samples is 0; it must be a whole number of at least 1."),
    (("videos", "--output", "mix.txt"), "a mix is written to a .parquet file; name it so."),
    (("videos", "--output", "no/mix.parquet"), "it cannot be written ("),
)
def test_what_cannot_be_measured_is_said(words: tuple[object, ...], sentence: str) -> None:
    done = call("measure", *words)
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.split())


def test_predict_says_what_the_tail_costs(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "extends: preset:llava_7b_homogeneous\n"
        "data: {workload: image_captions}\n"
        "prediction: {price_per_gpu_hour: 2}\n"
    )
    done = call("predict", file)
    assert done.exit_code == 0, done.output
    assert "Steps over samples of image_captions" in done.stdout
    assert "$ a day" in done.stdout
    rows = json.loads(call("predict", file, "--json").stdout)["over_samples"]["policies"]
    assert [row["policy"] for row in rows] == [
        "as drawn", "balanced order", "balanced frames", "packed"
    ]  # fmt: skip
    assert "over_samples" not in json.loads(
        call("predict", "preset:llava_7b_homogeneous", "--json").stdout
    )
