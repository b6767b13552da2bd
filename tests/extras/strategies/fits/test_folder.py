"""Folders of fits, and their tables for charts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mimokit.analysis import (
    FitFolder,
    RunFolderError,
    bytes_of_fits,
    drift_of_fits,
    read_fit,
    validation_of_fits,
)
from mimokit.result_files import FitFile
from tests.extras.strategies.fits.fake_fits import (
    COMPUTE_SECONDS,
    EVERY,
    NETWORK,
    NODES,
    fake_fits,
    plan,
)
from tests.rows import rows

STEPS = 20


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FitFolder]:
    return fake_fits(tmp_path_factory.mktemp("fits"))


def test_a_folder_is_read(fits: dict[str, FitFolder]) -> None:
    found = fits["DiLoCo"]
    assert found.config == {"strategy": "diloco"}
    assert list(found.train["step"]) == list(range(1, STEPS + 1))
    assert set(found.communication["purpose"]) == {"start", "strategy", "evaluation"}
    assert found.prediction == {}


@rows("name", "SimpleReduce", "DiLoCo", "Islands", "Streaming", "DeMo")
def test_bytes_are_those_of_the_plan(fits: dict[str, FitFolder], name: str) -> None:
    """Those of start and evaluation do not count; islands have nodes that differ in none."""
    planned = sum(float(each.sum()) for each in plan(name).sent(STEPS).values()) / NODES
    table = validation_of_fits({name: fits[name]})
    assert table["sent_bytes"].iloc[-1] == pytest.approx(planned)
    assert table["sent_bytes"].iloc[0] == 0
    steps = bytes_of_fits({name: fits[name]})
    assert steps["sent_bytes"].sum() == pytest.approx(planned)
    due = {one.step for one in plan(name).exchanges(STEPS)}
    assert set(steps["step"][steps["sent_bytes"] > 0]) == due


def test_losses_are_those_of_the_mean_over_steps_and_time(fits: dict[str, FitFolder]) -> None:
    table = validation_of_fits(fits)
    assert list(dict.fromkeys(table["fit"])) == list(fits)
    own = table[table["fit"] == "DiLoCo"].reset_index(drop=True)
    assert list(own["step"]) == list(range(0, STEPS + 1, EVERY))
    assert own["loss"].to_list() == fits["DiLoCo"].validation["global_loss"].to_list()
    slowest = max(NETWORK.step_seconds(COMPUTE_SECONDS, NODES))
    assert own["predicted_seconds"][1] == pytest.approx(EVERY * slowest)


def test_a_fit_of_one_node_has_its_own_loss(fits: dict[str, FitFolder]) -> None:
    alone = fits["DiLoCo"].validation.drop(columns=["global_loss", "predicted_seconds"])
    table = validation_of_fits({"alone": _with(fits["DiLoCo"], validation=alone)})
    assert table["loss"].to_list() == alone["local_loss"].to_list()
    assert "predicted_seconds" not in table


def test_a_fit_that_did_not_measure_its_drift_has_no_rows(fits: dict[str, FitFolder]) -> None:
    unmeasured = _with(fits["DeMo"], drift=fits["DeMo"].drift.iloc[:0])
    table = drift_of_fits({"DiLoCo": fits["DiLoCo"], "DeMo": unmeasured})
    assert set(table["fit"]) == {"DiLoCo"}
    assert drift_of_fits({"DeMo": unmeasured}).empty


def _with(fit: FitFolder, **changed: object) -> FitFolder:
    return FitFolder(**{**vars(fit), **changed})


@rows(
    "harm, sentence",
    (lambda folder: (folder / FitFile.TRAIN).unlink(), "has no train.csv, so it is not the"),
    (lambda folder: (folder / FitFile.CONFIG).write_text("{"), "config.json is not valid JSON"),
    (
        lambda folder: (folder / FitFile.VALIDATION).write_text("step,loss\n1,2\n"),
        "validation.csv has no column local_loss",
    ),
    (
        lambda folder: (folder / FitFile.DRIFT).write_text(
            "step,mean_correlation,largest_distance\n5,high,1\n"
        ),
        "has 'high' in line 2 where column mean_correlation needs a number",
    ),
)
def test_what_is_broken_is_named(
    tmp_path: Path, harm: Callable[[Path], object], sentence: str
) -> None:
    folder = fake_fits(tmp_path)["DiLoCo"].directory
    harm(folder)
    with pytest.raises(RunFolderError, match=sentence):
        read_fit(folder)
    with pytest.raises(RunFolderError, match="nowhere does not exist"):
        read_fit(tmp_path / "nowhere")
