"""The judge of choices, on tables that predictions themselves made."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.prediction.choices import COLUMNS, choices, foreseen, read_tried, tables_of
from benchmarks.prediction.judge import choice_rows
from benchmarks.prediction.tables import DataError
from mimokit.prediction.step_time import load_software

SIZES = ((1, 1, 16, 1), (2, 1, 8, 2), (4, 1, 4, 4), (8, 1, 2, 8), (1, 2, 8, 1), (2, 2, 4, 2))
"""tensor, pipeline, data, micro-batch, on two nodes."""
TOO_LARGE = (1, 1, 16, 16)


def row(tensor: int, pipeline: int, data: int, samples: int, **more: Any) -> dict[str, Any]:
    stated = {
        "model": "1B", "layers": 16, "hidden": 2048, "heads": 32, "ffn": 8192, "nodes": 2,
        "gpus": 16, "micro_batch": samples, "micro_batches": 256 // (data * samples),
        "global_batch": 256, "dp": data, "pp": pipeline, "tp": tensor, "zero": 1,
        "outcome": "ran", "seconds": 1.0,
    }  # fmt: skip
    return stated | more


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def as_predicted(path: Path, **planted: float) -> Path:
    """Write a table of what is predicted; planted: place of a row -> times its seconds."""
    tried, _ = read_tried(write(path, [row(*sizes) for sizes in SIZES]))
    stack = load_software("nanotron")
    seconds = [foreseen(each.task, stack)[0].seconds for each in tried]
    rows = [
        row(*sizes, seconds=each * planted.get(f"row{place}", 1.0))
        for place, (sizes, each) in enumerate(zip(SIZES, seconds, strict=True))
    ]
    return write(path, [*rows, row(*TOO_LARGE, outcome="failed", seconds="")])


def test_a_table_of_predictions_is_judged_right(tmp_path: Path) -> None:
    (judged,) = choices(as_predicted(tmp_path / "tried.csv"))
    assert (judged.model, judged.nodes, judged.layouts) == ("1B", 2, 7)
    assert judged.ten_fastest_percent == pytest.approx(0.0, abs=0.01)
    assert judged.loss_of_best_percent == 0.0
    assert judged.loss_of_best_of_three_percent == 0.0
    assert judged.failures_foreseen_percent == 100.0
    assert judged.runners_refused_percent == 0.0
    assert judged.inside_band_percent == 100.0
    names = {line["name"] for line in choice_rows([judged]) if line["ok"]}
    assert "failures foreseen, 0 own runs given" in names


def test_a_layout_that_ran_slower_is_noticed(tmp_path: Path) -> None:
    """The layout predicted fastest takes three times as long."""
    (plain,) = choices(as_predicted(tmp_path / "plain.csv"))
    tried, _ = read_tried(tmp_path / "plain.csv")
    ran = [each.seconds for each in tried if each.seconds is not None]
    fastest = ran.index(min(ran))
    (planted,) = choices(as_predicted(tmp_path / "slow.csv", **{f"row{fastest}": 3.0}))
    assert planted.loss_of_best_percent > 5
    assert planted.ten_fastest_percent > 5 > plain.ten_fastest_percent
    assert planted.moved[0][1] == pytest.approx(1 / 3, rel=0.01)


def test_own_runs_adjust_what_is_predicted(tmp_path: Path) -> None:
    """Every run takes 15 % longer: three of them say so."""
    slower = {f"row{place}": 1.15 for place in range(len(SIZES))}
    path = as_predicted(tmp_path / "tried.csv", **slower)
    (without,), (judged,) = choices(path), choices(path, given=3)
    assert without.ten_fastest_percent == pytest.approx(13.0, abs=0.2)
    assert judged.given == 3
    assert judged.ten_fastest_percent < 6


def test_tables_of_tried_layouts_are_found(tmp_path: Path) -> None:
    write(tmp_path / "other.csv", [{"model": "1B"}])
    path = write(tmp_path / "tried.csv", [row(*SIZES[0]), row(*SIZES[0], micro_batches=3)])
    assert tables_of(tmp_path) == [path]
    tried, skipped = read_tried(path)
    assert len(tried) == 1
    assert list(skipped.values()) == [1]
    short = {name: value for name, value in row(*SIZES[0]).items() if name != "zero"}
    write(path, [short])
    with pytest.raises(DataError, match=r"tried.csv: column 'zero' is missing"):
        read_tried(path)
    assert "zero" in COLUMNS
