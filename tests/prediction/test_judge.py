"""The judge of predictions catches what is planted: wrong times, wrong order, missing columns."""

import csv
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.prediction.__main__ import main
from benchmarks.prediction.doubt import coverage, flagged, peak_bytes
from benchmarks.prediction.fit import bounds_reached, constants_for, fitted_constants, on_bound
from benchmarks.prediction.folds import FAMILIES
from benchmarks.prediction.judge import GIVEN_RUNS, LEAST_ORDER, Judgement, judge
from benchmarks.prediction.own_runs import errors_of, means
from benchmarks.prediction.predicted import predict_seconds
from benchmarks.prediction.rows import (
    A100,
    A100_COLUMNS,
    PUBLISHED,
    PUBLISHED_COLUMNS,
    Measured,
    read,
)
from benchmarks.prediction.score import Order, orders, predictions, scores
from benchmarks.prediction.tables import MODELS, DataError
from mimokit.architecture.attention import LatentAttention
from mimokit.config.recipe import RecipeConfig
from mimokit.config.sizes import ParallelSizes
from tests.prediction.shipped import language_model

LAYOUTS = [ParallelSizes(t, p, data=32 // (t * p)) for t, p in ((1, 1), (2, 2), (4, 2), (8, 1))]


def measured(factors: list[float]) -> list[Measured]:
    """Return runs that took a multiple of what is predicted."""
    model = language_model("qwen2.5-7b")
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
    (row, *_) = measured([1.0] * 4)
    everything = constants_for(row)
    for models in FAMILIES.values():
        for name in models:
            known = replace(row, model=replace(row.model, name=name), release="26.04")
            assert constants_for(known) != everything
    for kind in ("generation", "release"):
        assert constants_for(known, kind) != everything
    assert constants_for(replace(known, release="never"), "release") == everything


def test_runs_of_one_layout_that_differ_and_those_that_cannot_fit_are_flagged() -> None:
    rows = measured([1.0] * 4)
    twice = replace(rows[0], label="twice as long", seconds=2 * (rows[0].seconds or 0))
    large = replace(rows[1], sizes=replace(rows[1].sizes, micro_batch=64))
    found = flagged([*rows, twice, large])
    assert set(found) == {0, 4, 5}
    assert "2 runs of this layout take" in found[4]
    assert found[5].endswith("GiB, and the GPU has 79 GiB")
    assert set(flagged([*rows, twice, replace(large, keeps_less=True)])) == {0, 4}
    sizes = replace(rows[0].sizes, micro_batch=2)
    slower = replace(rows[0], sizes=sizes, seconds=1.3 * (rows[0].seconds or 0))
    assert list(flagged([rows[0], slower])) == [1]
    judgement = replace(judged([rows[0], twice]), flagged={twice.label: "contradicts"})
    assert judgement.as_printed()["dense models"] == pytest.approx(0, abs=1e-9)


def test_the_share_of_rows_inside_the_band_is_counted() -> None:
    rows = [replace(row, precision="fp8") for row in measured([1.0] * 4)]
    rows = [replace(row, recipe=RecipeConfig(graphs="none")) for row in rows]
    assert coverage(rows, np.array([0.0, 0.05, -0.05, 0.5])) == {"dense": 0.75}


def test_another_program_is_judged_apart_and_without_a_target() -> None:
    rows = [replace(row, stack="automodel") for row in measured([1.5] * 4)]
    found = judged(rows)
    assert [score.name for score in found.scores] == ["dense h100 bf16 (automodel)"]
    assert not [row for row in found.rows() if row["name"].startswith("step time")]


def test_given_runs_of_a_slower_machine_teach_its_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.prediction.own_runs.LEAST", 4)
    rows = measured([1.2] * 4)
    rows[3] = replace(rows[3], sizes=ParallelSizes(4, 1, data=8))
    rows[3] = replace(rows[3], seconds=1.2 * float(predict_seconds([rows[3]])[0]))
    not_divisible = replace(rows[3], sizes=ParallelSizes(8, 1, data=4))
    given = means(errors_of([*rows, not_divisible]))
    assert given.keys() == {0, 1, 3}, "no run is left after 10"
    assert given[0] == pytest.approx(100 / 6, abs=0.5)
    assert given[3] < 5
    found = replace(judged(measured([1.0] * 4)), given=given)
    assert [row["ok"] for row in found.rows() if "own runs" in row["name"]] == [True]
    missed = replace(found, given={**given, GIVEN_RUNS: 5.1})
    assert [row["ok"] for row in missed.rows() if "own runs" in row["name"]] == [False]


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


def test_models_that_the_tables_leave_out_are_described_beside_them(tmp_path: Path) -> None:
    row = dict.fromkeys(PUBLISHED_COLUMNS, "") | {
        "model": "New", "arch": "moe-mla", "layers": "4", "hidden": "2048", "heads": "16",
        "vocab": "32000", "experts": "8", "topk": "2", "moe_ffn": "512", "seq": "4096", "gbs": "64",
        "mbs": "1", "gpus": "8", "gpu": "H100", "precision": "BF16", "dp": "8", "iter_time_s": "1",
    }  # fmt: skip
    table = [",".join(row), ",".join(row.values())]
    (tmp_path / PUBLISHED).write_text("\n".join(table) + "\n", encoding="utf-8")
    sentence = "latent attention: q_rank, kv_rank, nope_dim, rope_dim, v_dim are not given"
    assert read(tmp_path) == ([], {sentence: 1})
    (tmp_path / MODELS).write_text(
        "model,q_rank,kv_rank,nope_dim,rope_dim,v_dim\nNew,0,256,64,32,64\n", encoding="utf-8"
    )
    ((measured,), _) = read(tmp_path)
    assert measured.model.net.attention == LatentAttention(0, 256, 64, 32, 64)


def test_gpt_oss_has_windows_and_biases_that_the_tables_leave_out(tmp_path: Path) -> None:
    row = dict.fromkeys(PUBLISHED_COLUMNS, "") | {
        "model": "GPT OSS", "arch": "moe", "layers": "36", "hidden": "2880", "heads": "64",
        "head_dim": "64", "vocab": "201088", "experts": "128", "topk": "4", "moe_ffn": "2880",
        "seq": "4096", "gbs": "64", "mbs": "1", "gpus": "8", "gpu": "H100", "precision": "BF16",
        "dp": "8", "iter_time_s": "1",
    }  # fmt: skip
    narrower = row | {
        "model": "narrow",
        "hidden": "2048",
        "window": "512",
        "full_attention_layers": "6",
    }
    table = [",".join(narrower), ",".join([*row.values(), "", ""]), ",".join(narrower.values())]
    (tmp_path / PUBLISHED).write_text("\n".join(table) + "\n", encoding="utf-8")
    nets = [one.model.net for one in read(tmp_path)[0]]
    assert [net.ffn_bias for net in nets] == [True, False]
    assert [(net.window, net.full_layers) for net in nets] == [(128, 18), (512, 6)]


def test_a_missing_column_is_named_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, [name for name in A100_COLUMNS if name != "tp"])
    monkeypatch.setattr(sys, "argv", ["prediction", "--data", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == "a100-measured-steps.csv: column 'tp' is missing."


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is none of published-performance\.csv"):
        judge(tmp_path)


def test_adapters_train_without_gradients_and_optimizer_of_the_base() -> None:
    row = measured([1.0] * len(LAYOUTS))[0]
    adapted = replace(row, trained=False)
    weights = gradients = 2 * row.model.parameters
    assert peak_bytes(row) - peak_bytes(adapted) > gradients
    assert peak_bytes(adapted) > weights


def test_what_ends_on_a_bound_is_named_with_its_fold() -> None:
    said = list(bounds_reached())
    ended = {
        name
        for name, values in fitted_constants().items()
        for constant, value in values.items()
        if on_bound({constant: value})
    }
    named = {sentence.partition(":")[0].removeprefix("Without ") for sentence in said}
    assert "All rows" in named
    assert {name for name in named if name != "All rows"} <= ended
