"""Charts of many runs, and the page of them."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from make.site.check import external_references
from mimokit import charts
from mimokit.analysis import Runs, compare, load_runs, loss_over_tokens, scaling_table
from mimokit.charts import _renderer
from mimokit.samples import expert_column
from tests.analysis.planted_runs import Planted, write_run
from tests.charts.pictures import faults
from tests.rows import rows

EVEN = Planted(iterations=30, warmup=3)
RUNS = {
    "baseline": EVEN,
    "slow_rank": replace(EVEN, slow={3: 1.6}, seed=1),
    "same": replace(EVEN, seed=2),
    "apart": replace(EVEN, mode="heterogeneous", seed=3),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("results")
    for name, planted in RUNS.items():
        write_run(folder / name, planted)
    broken = folder / "refused <b>"
    broken.mkdir()
    (broken / "error.json").write_text('{"type": "ConfigError", "message": "5 < 6 & more"}')
    return load_runs(folder)


MAKERS: dict[str, Callable[[Runs], Any]] = {
    "expert_load": lambda runs: charts.expert_load(expert_loads()),
    "stragglers": lambda runs: charts.stragglers(runs["slow_rank"].ranks),
    "rank_memory": lambda runs: charts.rank_memory(runs["apart"].ranks, 600e6),
    "rank_memory without a limit": lambda runs: charts.rank_memory(runs["apart"].ranks),
    "scaling": lambda runs: charts.scaling(scaling(runs)),
}


def scaling(runs: Runs) -> pd.DataFrame:
    table = scaling_table(runs, compare(runs, "baseline"))
    table["world_size"] = [2, 4, 8, 8]
    return table


@rows("name", *MAKERS)
def test_is_a_valid_spec_and_a_picture(runs: Runs, name: str) -> None:
    bundle = _renderer.bundle_of(MAKERS[name](runs))
    assert faults(bundle["image/svg+xml"]) == []
    assert "no description" not in bundle["text/plain"]


def rows(chart: Any) -> list[dict[str, Any]]:
    (first, *_) = chart.to_dict()["datasets"].values()
    return list(first)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave pictures empty on pages, and out of them what draws them again: both take seconds."""
    monkeypatch.setattr(_renderer, "svg", lambda spec: "<svg></svg>")
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda snippet, vl_version: snippet)


@pytest.mark.usefixtures("undrawn")
def test_runs_that_did_not_complete_are_named_and_neither_best_nor_worst(tmp_path: Path) -> None:
    for name, seconds, status in (
        ("dead_fast", 0.001, "failed"),
        ("whole", 0.010, "completed"),
        ("dead_slow", 0.100, "failed"),
    ):
        forward = {"images": seconds, "language_module": seconds}
        write_run(tmp_path / name, Planted(iterations=20, forward=forward), status=status)
    found = load_runs(tmp_path)
    page = charts.report(found)
    ranks = page[page.index('<section id="ranks">') :]
    assert re.findall(r"<h3>(\w+)</h3>", ranks) == ["whole"]


def test_the_slow_rank_stands_out(runs: Runs) -> None:
    found = pd.DataFrame(rows(charts.stragglers(runs["slow_rank"].ranks)))
    means = found.groupby("rank")["share"].mean()
    assert means[3] == pytest.approx(0.6, abs=0.05)
    assert means.drop(3).abs().max() < 0.02


def expert_loads(steps: int = 30) -> pd.DataFrame:
    loads = {0: 1 + np.arange(steps) / 30}
    loads |= dict.fromkeys((1, 2, 3), 1 - np.arange(steps) / 90)
    columns = {expert_column("language_module", number): load for number, load in loads.items()}
    return pd.DataFrame({"iteration": np.arange(steps), **columns})


def test_a_busy_expert_stands_out() -> None:
    chart = charts.expert_load(expert_loads())
    found = pd.DataFrame(rows(chart)).groupby("expert")["load"].max()
    assert found.to_dict() == pytest.approx({0: 1 + 29 / 30, 1: 1.0, 2: 1.0, 3: 1.0}, abs=1e-4)
    assert "language_module" in str(chart.to_dict()["title"])
    assert len(rows(charts.expert_load(expert_loads(3000)))) <= 4 * 100
    with pytest.raises(ValueError, match="needs a table with the column images_expert_0_load"):
        charts.expert_load(expert_loads(), "images")


def test_long_runs_stay_small(runs: Runs) -> None:
    ranks = runs["same"].ranks
    long = pd.concat([ranks.assign(iteration=ranks["iteration"] + 30 * k) for k in range(40)])
    assert len(rows(charts.stragglers(long))) <= 8 * 101


def test_ideal_scaling_is_that_of_the_smallest(runs: Runs) -> None:
    table = scaling_table(runs, compare(runs, "baseline"))
    assert table["efficiency"].max() == 1.0
    assert (table["world_size"] == 8).all()


def test_tokens_are_those_of_the_steps_so_far(runs: Runs) -> None:
    table = loss_over_tokens(runs)
    assert table.attrs["over"] == "tokens"
    assert table[table["run"] == "same"]["tokens"].to_list()[:2] == [1152, 2304]
    runs = replace(runs, runs=runs.runs.assign(tokens_per_step=None))
    assert loss_over_tokens(runs).attrs["over"] == "samples"


def test_the_page_holds_everything_and_needs_no_network(runs: Runs) -> None:
    page = charts.report(runs, "baseline")
    assert external_references(page) == []
    assert page.count("<figure>") == page.count('type="application/json"') >= 4
    assert "Rank 3 is the slowest" in page
    assert "Its difference from same is not significant" in page
    assert "5 &lt; 6 &amp; more" in page
    assert "refused <b>" not in page
    assert "vegaEmbed" in page or "vega-embed" in page


@pytest.mark.usefixtures("undrawn")
def test_a_page_of_runs_that_measured_nothing(tmp_path: Path) -> None:
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed" / "error.json").write_text('{"type": "RankDied", "message": "gone"}')
    page = charts.report(load_runs(tmp_path))
    assert "nothing to compare" in page
    assert "RankDied: gone" in page
