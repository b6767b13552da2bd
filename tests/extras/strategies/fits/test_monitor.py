"""The live monitor of a fit: nodes that have losses of their own, and no tokens."""

from typing import Any

import pytest

from mimokit.engine.strategies import FedAvgStrategy
from mimokit.extras.strategies.fits.run import FitLayout
from mimokit.samples import StepSample
from mimokit_widgets import LiveMonitor
from mimokit_widgets.live.rows import STEP
from tests.extras.strategies.fits.in_process import OneNode
from tests.extras.strategies.fits.nets import places, trainer
from tests.widgets.fake_run import FakeRun

STEPS, EVERY = 12, 5


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, LiveMonitor]:
    """A fit of one node, with its monitor."""
    run = trainer(OneNode()).start(
        strategy=FedAvgStrategy(), max_steps=STEPS, batch_size=8, minibatch_size=8, val_size=20,
        val_interval=EVERY, **places(tmp_path_factory.mktemp("fit")),
    )  # fmt: skip
    monitor = LiveMonitor(run)
    result = run.result()
    monitor.wait()
    return result, monitor


def column(monitor: LiveMonitor, name: str) -> list[Any]:
    place = 1 + monitor._header["step"].index(name)
    return [row[place] for row in monitor._rows.history()["rows"] if row[0] == STEP]


def test_a_fit_leaves_a_picture_without_tokens(watched: tuple[Any, LiveMonitor]) -> None:
    monitor = watched[1]
    assert monitor.status == "finished"
    assert monitor.sentence.startswith(f"{STEPS} iterations in ")
    assert monitor._layout_in_words == "fedavg on 1 rank"
    assert f"Training finished. {monitor.sentence}" in monitor._saved.bundle()["text/plain"]
    assert set(column(monitor, "tokens_per_sec")) == {None}


def test_validations_are_shown_with_their_steps(watched: tuple[Any, LiveMonitor]) -> None:
    """That before the first step belongs to none."""
    result, monitor = watched
    table = result.validation.set_index("step")["local_loss"]
    shown = dict(zip(column(monitor, "iteration"), column(monitor, "validation_loss"), strict=True))
    known = {1 + step: loss for step, loss in shown.items() if loss is not None}
    assert list(known) == [5, 10, 12]
    assert known == pytest.approx({step: table[step] for step in known}, rel=1e-5)


def test_passes_of_the_model_have_times(watched: tuple[Any, LiveMonitor]) -> None:
    monitor = watched[1]
    assert all(seconds > 0 for seconds in column(monitor, "model_forward_time"))
    assert {phase["name"] for phase in monitor._phases} >= {"model forward", "model backward"}


def test_the_loss_is_the_mean_of_the_nodes() -> None:
    run = FakeRun(2)
    run.plan = FitLayout("diloco", 2)  # type: ignore[assignment]
    monitor = LiveMonitor(run)
    run.give([StepSample(0, 0.1, loss=1.0 + 2 * node, rank=node, replica=node) for node in (0, 1)])
    assert monitor._header["over"]["loss"] == "replicas"
    assert column(monitor, "loss") == [1.0, 3.0]
    assert column(monitor, "replica") == [0, 1]
    run.end()
    monitor.wait()
