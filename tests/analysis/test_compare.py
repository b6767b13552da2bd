"""Intervals cover the truth as often as they say, and differences are found where there are any."""

import io
from pathlib import Path

import numpy as np
import pytest

from mimokit.analysis import compare, load_runs, scaling_table
from mimokit.analysis.bootstrap import block_length, difference, estimate_run, estimate_runs
from mimokit.analysis.comparison import lower_is_better
from tests import seams
from tests.analysis.planted_runs import Planted, write_run
from tests.rows import rows

TRIALS = 300
DRAWN = 100


def series(rng: np.random.Generator, count: int, correlation: float) -> np.ndarray:
    """Return successive step times with median 1, skewed and correlated as real ones are."""
    noise = np.zeros(count + 50)
    for step, fresh in enumerate(rng.normal(0, 1, count + 50)):
        before = noise[step - 1] if step else 0.0
        noise[step] = correlation * before + (1 - correlation**2) ** 0.5 * fresh
    return np.exp(0.1 * noise[50:])


def coverage(count: int, correlation: float) -> float:
    rng = np.random.default_rng(count)
    hits = 0
    for _ in range(TRIALS):
        low, high = estimate_run(series(rng, count, correlation), rng, DRAWN).interval(0.95)
        hits += low <= 1.0 <= high
    return hits / TRIALS


@rows("count, correlation", (20, 0.0), (50, 0.0), (300, 0.0), (50, 0.5), (300, 0.5), (300, 0.8))
def test_intervals_of_one_run_cover_the_median(count: int, correlation: float) -> None:
    # With 300 trials, 95 % are measured as 92.5 to 97.5 % in 19 of 20 cases.
    assert 0.91 <= coverage(count, correlation) <= 0.99


def test_single_steps_would_cover_it_too_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: without blocks it does."""
    monkeypatch.setattr(seams.BLOCK_LENGTH, lambda values: 1)
    assert coverage(300, 0.8) < 0.75


@rows("runs", 3, 6)
def test_intervals_of_repeated_runs_cover_what_runs_share(runs: int) -> None:
    rng = np.random.default_rng(runs)
    hits = 0
    for _ in range(TRIALS):
        made = [rng.normal(1.0, 0.05) * series(rng, 40, 0.3) for _ in range(runs)]
        low, high = estimate_runs(made, rng, DRAWN).interval(0.95)
        hits += low <= 1.0 <= high
    assert 0.91 <= hits / TRIALS <= 0.99


@rows("change, found", (0.0, (0.01, 0.085)), (0.15, (0.97, 1.0)))
def test_differences_are_found_and_none_is_invented(
    change: float, found: tuple[float, float]
) -> None:
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(TRIALS):
        one, other = (estimate_run(f * series(rng, 100, 0.5), rng, DRAWN) for f in (1 + change, 1))
        low, high = difference(one, other).interval(0.95)
        hits += low > 0 or high < 0
    assert found[0] <= hits / TRIALS <= found[1]


def test_blocks_grow_with_correlation() -> None:
    rng = np.random.default_rng(3)
    lengths = [
        np.mean([block_length(series(rng, 400, rho)) for _ in range(40)]) for rho in (0, 0.5, 0.9)
    ]
    assert lengths[0] < 15 < lengths[1] < lengths[2] / 1.5
    assert block_length(np.ones(100)) == 1


def test_too_few_steps_have_no_interval() -> None:
    rng = np.random.default_rng(0)
    found = estimate_run(np.array([1.0, 2.0, 3.0]), rng, 100)
    assert found.value == 2.0
    assert np.isnan(found.interval(0.95)).all()
    assert np.isnan(estimate_run(np.array([np.nan]), rng, 100).value)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds of three layouts: the second is 10 % slower, the third is not."""
    folder = tmp_path_factory.mktemp("results")
    for layout, mode, factor in (
        ("first", "colocated", 1.0),
        ("slower", "colocated", 1.1),
        ("same", "heterogeneous", 1.0),
    ):
        for seed in range(3):
            times = {"images": 0.010 * factor, "language_module": 0.030 * factor}
            planted = Planted(
                iterations=60, seed=10 * ord(layout[1]) + seed, forward=times, memory_of=0.5
            )
            # The third is said to be heterogeneous, so that it counts as another layout.
            write_run(folder / f"{layout}_{seed}", planted, name=layout, deployment_mode=mode)
    return folder


def test_repeated_runs_of_a_layout_are_put_together(results: Path) -> None:
    found = compare(load_runs(results), "first", by="experiment")
    rows = found.table.set_index("name")
    assert rows["runs"].to_dict() == {"first": 3, "slower": 3, "same": 3}
    assert rows["iterations"].to_list() == [165] * 3
    assert rows["significant"].to_dict() == {"first": False, "slower": True, "same": False}
    assert rows.loc["slower", "change"] == pytest.approx(1 / 1.085 - 1, abs=0.02)
    low, high = rows.loc["slower", ["difference_low", "difference_high"]]
    assert low < rows.loc["slower", "difference"] < high < 0
    assert found.as_good_as_best == [name for name in ("same", "first") if name != found.best]
    assert "not differ significantly" in str(found) or found.best == "first"


def test_the_same_seed_gives_the_same_intervals(results: Path) -> None:
    runs = load_runs(results).only(["first_0", "slower_0"])
    one, other, third = (compare(runs, seed=seed).table for seed in (1, 1, 2))
    assert one.equals(other)
    assert not one.equals(third)


def test_of_a_time_the_smallest_is_best(results: Path) -> None:
    runs = load_runs(results).only(["slower_0", "first_0"])
    for metric in ("total_time", "tokens_per_sec"):
        found = compare(runs, metric=metric)
        assert found.best == "first_0"
        assert found.baseline == "slower_0"
        assert "at 95% confidence" in str(found)
        assert "Each has one run" in str(found)


def test_a_run_without_iterations_is_left_out_and_said(results: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "error.json").write_text('{"type": "RankError", "message": "gone"}')
    found = compare(load_runs([results / "first_0", tmp_path / "broken"]))
    assert list(found.left_out) == ["broken"]
    assert "broken is not compared: its status is failed, and it has no iteration" in str(found)


def test_a_run_that_failed_early_is_not_the_best(results: Path, tmp_path: Path) -> None:
    """Few steps have no interval, and may be fast by chance."""
    fast = {"images": 0.001, "language_module": 0.001}
    write_run(tmp_path / "short", Planted(iterations=9, forward=fast), status="failed")
    found = compare(load_runs([results / "first_0", tmp_path / "short"]))
    assert list(found.left_out.values()) == [
        "its status is failed, and it has only 4 after the warm-up with tokens_per_sec"
    ]
    assert found.best == "first_0"
    alone = compare(load_runs(tmp_path / "short"))
    assert alone.best == "short"
    assert "too few steps" in str(alone)


def test_a_run_that_failed_in_its_warm_up_is_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "whole", Planted(iterations=4, warmup=1))
    failed = write_run(tmp_path / "failed", Planted(iterations=2, warmup=3), status="failed")
    found = compare(load_runs(tmp_path))
    assert list(found.table["name"]) == ["whole"]
    assert "failed is not compared: its status is failed, and it has no iteration after" in str(
        found
    )
    assert list(compare(load_runs(failed)).table["name"]) == ["failed"]  # better than nothing


@pytest.fixture
def with_killed(results: Path, tmp_path: Path) -> list[Path]:
    """Two runs that completed, and a faster one that a killed rank ended."""
    fast = {"images": 0.001, "language_module": 0.001}
    killed = write_run(tmp_path / "killed", Planted(iterations=30, forward=fast), status="failed")
    return [results / "slower_0", results / "first_0", killed]


def test_a_run_that_did_not_complete_is_not_ranked(with_killed: list[Path]) -> None:
    runs = load_runs(with_killed)
    found = compare(runs, "slower_0")
    assert list(found.table["name"]) == ["first_0", "slower_0", "killed"]
    assert found.ranked == ["first_0", "slower_0"]
    assert "killed" not in found.as_good_as_best
    assert "killed is not ranked: its status is failed." in found.sentences()
    assert found.rows()[-1][-1] == "failed, not ranked"
    assert list(scaling_table(runs, found)["name"]) == ["slower_0", "first_0"]
    assert compare(runs, metric="total_time").best == "first_0"


def test_where_no_run_completed_that_is_said(with_killed: list[Path]) -> None:
    found = compare(load_runs(with_killed[-1]))
    assert found.best == "killed"
    assert "No run has completed: the medians are those of what was measured." in found.notes


def test_of_a_layout_the_runs_that_completed_count(with_killed: list[Path]) -> None:
    found = compare(load_runs(with_killed), by="layout")
    assert found.table[["runs", "iterations"]].to_numpy().tolist() == [[2, 110]]
    assert found.unfinished == {}


def test_the_baseline_is_a_complete_run_if_none_is_named_so(results: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "aborted", Planted(), status="failed")
    found = compare(load_runs([tmp_path / "aborted", results / "first_0"]))
    assert found.baseline == "first_0"
    assert compare(load_runs(tmp_path / "aborted")).baseline == "aborted"


def test_rates_are_better_when_they_are_higher() -> None:
    rates = ("tokens_per_sec", "flops_per_sec", "images_flops_per_sec", "model_flop_utilisation")
    assert not any(lower_is_better(name) for name in rates)
    assert all(lower_is_better(name) for name in ("total_time", "loss", "memory_peak"))


def test_it_shows_itself_as_text_and_html(results: Path) -> None:
    from rich.console import Console

    found = compare(load_runs(results), by="experiment")
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(found)
    assert "not significant" in console.export_text()
    assert found._repr_html_().count("<table") == 1


@rows(
    "options, sentence",
    ({"metric": "speed"}, "Metric speed does not exist; the metrics are total_time"),
    ({"by": "colour"}, "Column colour does not exist"),
    ({"baseline": "tenth"}, "Baseline 'tenth': there is none of this name; choose among"),
    ({"confidence": 95}, "confidence is 95; it must be between 0 and 1"),
    ({"metric": "validation_loss"}, "No run has values of validation_loss"),
)
def test_refusals_are_one_sentence(results: Path, options: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        compare(load_runs(results), **options)
    assert "\n" not in str(caught.value)
