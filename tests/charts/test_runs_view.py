"""What a view of runs is drawn from: the figures are those of the analysis."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mimokit.analysis import Runs, compare, load_runs
from mimokit.charts.runs_view.content import RunsContent, runs_content
from mimokit.charts.runs_view.details import run_details, run_figures
from mimokit.charts.runs_view.page import runs_view
from tests.analysis.planted_runs import Planted, write_run

EVEN = Planted(iterations=30, warmup=3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("results")
    write_run(folder / "baseline", EVEN)
    write_run(folder / "slow_rank", replace(EVEN, slow={3: 1.6}, seed=1))
    write_run(folder / "apart", replace(EVEN, mode="heterogeneous", iterations=12, seed=3))
    (folder / "refused").mkdir()
    (folder / "refused" / "error.json").write_text('{"type": "ConfigError", "message": "no"}')
    return load_runs(folder)


@pytest.fixture(scope="module")
def content(runs: Runs) -> RunsContent:
    return runs_content(runs, "baseline")


def curve(content: RunsContent, run: str, metric: str) -> np.ndarray:
    """Return the values of a curve as the browser finds them in the bytes."""
    numbers = np.frombuffer(content.curves, dtype=np.float32)
    names = ["iteration", *(each["name"] for each in content.about["metrics"])]
    for row in content.about["runs"]:
        size = row["count"] * len(names)
        if row["name"] == run:
            return numbers[:size].reshape(len(names), -1)[names.index(metric)]
        numbers = numbers[size:]
    raise KeyError(run)


def test_medians_and_curves_are_those_of_the_analysis(runs: Runs, content: RunsContent) -> None:
    described = {row["name"]: row for row in content.about["runs"]}
    compared = compare(runs, "baseline", "total_time")
    for row in compared.table.itertuples():
        median, low, high, *_ = described[row.name]["medians"]["total_time"]
        assert (median, low, high) == pytest.approx((row.median, row.low, row.high), rel=1e-6)
    assert described["refused"]["medians"]["total_time"] is None
    assert described["apart"]["sizes"] != described["baseline"]["sizes"]
    assert "language_module PP" in content.about["size_titles"]
    for name in runs["slow_rank"].iterations[["loss", "total_time"]]:
        measured = runs["slow_rank"].iterations[name].to_numpy()
        assert curve(content, "slow_rank", name) == pytest.approx(measured, rel=1e-6)
    assert "samples_per_sec" not in {each["name"] for each in content.about["metrics"]}
    assert content.shown[0] == "baseline"
    assert "refused" not in content.shown


def test_a_run_that_did_not_complete_comes_behind_those_that_did(tmp_path: Path) -> None:
    write_run(tmp_path / "whole", EVEN)
    fast = {"images": 0.001, "language_module": 0.001}
    write_run(tmp_path / "killed", replace(EVEN, forward=fast), status="failed")
    shown = runs_content(load_runs(tmp_path))
    assert [row["name"] for row in shown.about["runs"]] == ["whole", "killed"]
    assert shown.shown == ["whole", "killed"]
    assert shown.about["runs"][1]["medians"]["tokens_per_sec"] is not None


def test_long_runs_are_thinned_to_means(runs: Runs, content: RunsContent) -> None:
    thinned = content.thinned(sum(table.size for table in content.tables) // 4)
    every = thinned.about["every"]
    assert every >= 4
    losses = runs["baseline"].iterations["loss"].to_numpy()
    assert curve(thinned, "baseline", "loss")[0] == pytest.approx(losses[:every].mean(), rel=1e-6)
    assert curve(thinned, "baseline", "iteration")[1] == every
    assert len(thinned.curves) < len(content.curves) / 3


def test_the_slow_rank_is_so_against_ranks_with_the_same_work(runs: Runs) -> None:
    figures = run_figures(runs, ["slow_rank", "apart", "refused"])
    shares = {rank: share for rank, _, share in figures["slow_rank"]["ranks"]}
    assert shares.pop(3) == pytest.approx(0.6, abs=0.05)
    assert max(map(abs, shares.values())) < 0.02
    assert max(abs(share) for _, _, share in figures["apart"]["ranks"]) < 0.02
    seconds = sum(seconds for _, _, seconds in figures["slow_rank"]["parts"])
    steps = runs.settled(runs["slow_rank"].iterations)
    assert seconds == pytest.approx(steps["total_time"].median(), rel=0.01)
    assert figures["refused"] == {"parts": [], "ranks": [], "planned": None}


def test_a_run_is_told_of_with_its_plan_and_its_trace(runs: Runs) -> None:
    (runs.folders["apart"] / "trace.json").write_text('{"traceEvents": []}')
    told = run_details(runs, "apart")
    assert "heterogeneous" in told["plan"]
    assert told["trace"].startswith("file://")
    assert told["trace"].endswith("apart/trace.json")
    refused = run_details(runs, "refused")
    assert refused["plan"] == refused["trace"] == ""
    assert any("Its plan is not known" in sentence for sentence in refused["sentences"])


def test_one_run_and_runs_that_measured_nothing_are_shown_too(runs: Runs) -> None:
    assert runs_content(runs["apart"]).about["baseline"] == "apart"
    nothing = runs_content(runs["refused"])
    assert nothing.about["metrics"] == []
    assert nothing.curves == b""
    assert "refused" in runs_view(runs["refused"])


def test_no_such_baseline_is_said_in_a_sentence(runs: Runs, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Baseline 'other': there is none of this name"):
        runs_content(runs, "other")
