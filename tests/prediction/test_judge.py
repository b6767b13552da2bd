"""The judge of predictions catches what is planted: wrong times, wrong order, missing columns."""

from __future__ import annotations

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mimokit.architecture import LanguageModel, load_model
from mimokit.architecture.parallel_sizes import ParallelSizes
from tests.benchmarks.prediction.fit import FOLDS, constants_for
from tests.benchmarks.prediction.judge import LEAST_ORDER, Judgement, judge
from tests.benchmarks.prediction.predicted import predict_seconds
from tests.benchmarks.prediction.rows import A100, A100_COLUMNS, Measured
from tests.benchmarks.prediction.score import Order, orders, predictions, scores
from tests.benchmarks.prediction.tables import DataError

LAYOUTS = [ParallelSizes(t, p, data=32 // (t * p)) for t, p in ((1, 1), (2, 2), (4, 2), (8, 1))]


def measured(factors: list[float]) -> list[Measured]:
    """Return runs that took a multiple of what is predicted."""
    model = load_model("qwen2.5-7b")
    assert isinstance(model, LanguageModel)
    rows = [
        Measured(
            "published-performance", "one workload", model, "h100", "megatron-bridge", "bf16",
            sizes, 4096, 256, 32, 1.0, None, None, f"run {sizes.tensor}.{sizes.pipeline}",
        )
        for sizes in LAYOUTS
    ]  # fmt: skip
    seconds = predict_seconds(rows)
    return [
        replace(row, seconds=float(one) * factor)
        for row, one, factor in zip(rows, seconds, factors, strict=True)
    ]


def judged(rows: list[Measured]) -> Judgement:
    apart, shipped = predictions(rows)
    return Judgement(tuple(scores(rows, apart, shipped)), tuple(orders(rows, apart)), (), {}, {})


def test_what_is_measured_as_predicted_is_reached() -> None:
    found = judged(measured([1.0] * 4))
    assert all(row["ok"] for row in found.rows())
    assert found.orders[0].regret == 0
    assert found.bands()["dense"] == pytest.approx(0, abs=1e-12)
    assert found.misses() == []


def test_times_that_are_off_are_missed() -> None:
    found = judged(measured([1.25] * 4))
    step = next(row for row in found.rows() if row["name"].startswith("step time: dense"))
    assert step["measured"] == pytest.approx(20)
    assert not step["ok"]
    assert found.bands()["dense"] == pytest.approx(0.2)


def test_a_missed_target_is_reported_in_a_sentence() -> None:
    (sentence,) = judged(measured([1.15] * 4)).misses()
    assert sentence.startswith(
        "dense h100 bf16: predicted too fast throughout (-13.0 % on average)"
    )


def test_a_reversed_order_is_missed_and_regretted() -> None:
    rows = measured([1.0] * 4)
    times = sorted(row.seconds or 0 for row in rows)
    order = np.argsort([row.seconds or 0 for row in rows])
    for place, index in enumerate(order):
        rows[index] = replace(rows[index], seconds=times[-1 - place])
    found = judged(rows)
    assert found.orders[0].spearman == pytest.approx(-1)
    assert found.orders[0].regret == pytest.approx(times[-1] / times[0] - 1)
    assert not any(row["ok"] for row in found.rows() if "Spearman" in row["name"])


def in_order(times: list[float]) -> Order:
    """Return the order of layouts that took these times and are predicted from fast to slow."""
    rows = [
        replace(row, sizes=ParallelSizes(data=place + 1))
        for place, row in enumerate(measured([1.0] * 4))
    ]
    rows = [replace(row, seconds=time) for row, time in zip(rows, times, strict=True)]
    (found,) = orders(rows, np.arange(1.0, 1.0 + len(rows)))
    return found


def test_a_swap_within_noise_differs_from_one_beyond_it() -> None:
    tie, clear = in_order([1.0, 1.5, 1.49, 2.0]), in_order([1.0, 1.5, 1.4, 2.0])
    assert (tie.spearman, tie.ties_aside, tie.wrong, tie.wrong_ties) == (0.8, 1.0, 1, 1)
    assert (clear.spearman, clear.ties_aside, clear.wrong, clear.wrong_ties) == (0.8, 0.8, 1, 0)


def test_one_swapped_pair_of_five_layouts_reaches_the_target() -> None:
    model = measured([1.0] * 4)[0]
    rows = [
        replace(model, sizes=ParallelSizes(data=place + 1), seconds=time)
        for place, time in enumerate([1.0, 2.0, 4.0, 3.0, 5.0])
    ]
    (found,) = orders(rows, np.arange(1.0, 6.0))
    assert found.spearman >= LEAST_ORDER == 0.9


def test_fitted_models_are_scored_without_themselves() -> None:
    everything = constants_for("a separate model")
    for models in FOLDS.values():
        for model in models:
            assert constants_for(model) != everything


def write(folder: Path, columns: list[str]) -> None:
    row = {
        "scope": "single", "precision": "fp16", "gpus": 8, "gbs": 8, "mbs": 1, "hidden": 1024,
        "heads": 16, "layers": 12, "ffn": 4096, "seq": 1024, "tp": 8, "dp": 1, "pp": 1,
        "recompute": "full", "iter_time_ms": 400.0,
    }  # fmt: skip
    with (folder / A100).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerow(row)


def test_any_folder_with_such_a_table(tmp_path: Path) -> None:
    write(tmp_path, list(A100_COLUMNS))
    found = judge(tmp_path)
    assert [score.name for score in found.scores] == ["a100-measured-steps (single-node)"]
    assert len(found.scores[0].errors) == 1


def test_a_missing_column_is_named_in_one_sentence(tmp_path: Path) -> None:
    write(tmp_path, [name for name in A100_COLUMNS if name != "tp"])
    command = [sys.executable, "-m", "tests.benchmarks.prediction", "--data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == "a100-measured-steps.csv: column 'tp' is missing."


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is none of published-performance\.csv"):
        judge(tmp_path)
