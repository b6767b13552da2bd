"""Shipped configs and presets plan, predict and refuse as they did before."""

import json
from pathlib import Path

import pytest

import mimokit
from mimokit.analysis import read_run, read_trace
from mimokit.cluster import EngineCluster
from mimokit.experiment import train
from tests.evaluations import QUICK
from tests.frozen.answers import FROZEN, answers, as_frozen, rounded, sources
from tests.frozen.runs import FOLDER, LAST, LAYOUTS, SAVED, frozen_config
from tests.frozen.searches import CASES, SEARCHES, as_kept, searched
from tests.rows import rows

KEPT = json.loads(FROZEN.read_text())
FOUND = json.loads(SEARCHES.read_text())


def test_every_source_is_frozen() -> None:
    assert set(KEPT) == set(sources())


@rows("source", *KEPT)
def test_a_source_answers_as_before(source: str) -> None:
    """To see what differs, write both checkouts whole with `python -m tests.frozen FOLDER`."""
    assert as_frozen(answers(source)) == KEPT[source]


def test_a_changed_number_is_seen() -> None:
    source = "preset:llava_7b_colocated"
    answer = answers(source)
    memory = next(key for key, value in answer["h100"].items() if isinstance(value, float))
    answer["h100"][memory] *= 1.0001
    assert as_frozen(answer)["h100"] != KEPT[source]["h100"]
    assert as_frozen(rounded(answer))["plan"] == KEPT[source]["plan"]


@rows("case", *CASES)
def test_a_search_finds_the_same_layouts_as_before(case: str) -> None:
    assert as_kept(searched(case)) == FOUND[case]


def test_a_layout_that_a_search_lost_is_seen() -> None:
    found = searched("homogeneous")
    assert as_kept({**found, "front": found["front"][1:]}) != FOUND["homogeneous"]


@rows("mode", *LAYOUTS)
def test_a_results_folder_is_read(mode: str) -> None:
    run = read_run(FOLDER / mode)
    assert run.info["deployment_mode"] == mode
    assert run.metrics["loss"].between(0.1, 10).sum() == LAST
    assert set(run.metrics_by_rank["rank"]) == set(read_trace(FOLDER / mode)["rank"]) == {0, 1}
    assert mimokit.plan(run.config_file) == mimokit.plan(frozen_config(mode))


@pytest.mark.parametrize("mode", LAYOUTS)
def test_a_checkpoint_goes_on(cluster: EngineCluster, mode: str, tmp_path: Path) -> None:
    config = frozen_config(mode)
    resumed = train(
        cluster, config, directory=tmp_path / "run", resume=FOLDER / mode, evaluations=QUICK
    ).result()
    losses = resumed.steps.groupby("iteration").loss.first()
    before = read_run(FOLDER / mode).metrics["loss"].tolist()
    rounding = 3e-3 if config.runtime.precision == "bf16" else 1e-5
    assert losses.tolist() == pytest.approx(before[SAVED:], rel=rounding)
    # What a lost optimizer state would do to the last loss is more than that.
    assert abs(before[-1] - before[-2]) > rounding * before[-1]
