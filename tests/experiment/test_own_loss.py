"""A loss of the user's: trained and proven in every mode; one that breaks the proof is seen."""

from dataclasses import replace
from typing import Any

import pytest

from mimokit.cluster import EngineCluster, RankError
from mimokit.config import ConfigError, ExperimentConfig
from mimokit.config.checked_code import checked_code
from mimokit.experiment import Oracle, Stepper, compute_oracle, explain, train, verify
from tests.evaluations import QUICK
from tests.layouts import digits_config, two_microbatches
from tests.rows import rows

COLOCATED, APART = two_microbatches()


def _squared(loss_mask: Any, losses: Any) -> Any:
    weights = 0.37 * loss_mask  # a replica has a fraction of a token, too
    return (losses.square() * weights).sum(), weights.sum(), {"squared": losses.mean()}


def _mean_called_a_sum(loss_mask: Any, losses: Any) -> Any:
    return (losses * loss_mask).sum() / loss_mask.sum(), 1


@pytest.fixture(scope="module")
def oracle(shared_cluster: Any) -> Oracle:
    return compute_oracle(shared_cluster.get(), COLOCATED, steps=2, loss_func=_squared)


@pytest.mark.parametrize("config", [COLOCATED, APART], ids=["colocated", "heterogeneous"])
def test_it_is_what_a_layout_trains(
    config: ExperimentConfig, oracle: Oracle, cluster: EngineCluster
) -> None:
    report = verify(cluster, config, steps=2, oracle=oracle, loss_func=_squared)
    assert report.passed, report.verdict
    plain = verify(cluster, config, steps=1)
    assert plain.passed, plain.verdict
    assert abs(plain.losses[0] - report.losses[0]) > 0.1


def test_runs_and_steppers_take_it(oracle: Oracle, cluster: EngineCluster) -> None:
    run = train(cluster, COLOCATED, loss_func=_squared, evaluations=QUICK)
    assert run.result(300).steps["loss"].iloc[0] == pytest.approx(oracle.losses[0], rel=1e-5)
    with Stepper(cluster, COLOCATED, loss_func=_squared) as stepper:
        result = stepper.run_until(action="report").records[0].result
    assert result["loss"] == pytest.approx(oracle.losses[0], rel=1e-5)


def test_its_tensors_are_compared(cluster: EngineCluster) -> None:
    found = explain(cluster, COLOCATED, steps=1, loss_func=_squared)
    assert found.passed, found.verdict


def test_an_oracle_of_another_loss_is_rejected(oracle: Oracle, cluster: EngineCluster) -> None:
    assert oracle.is_for(COLOCATED, loss_func=_squared)
    edited = replace(oracle, code=replace(oracle.code, files={__file__: "before an edit"}))
    for older, loss in ((oracle, None), (edited, _squared)):
        with pytest.raises(ValueError, match=r"differs .* in its .* code"):
            verify(cluster, COLOCATED, steps=1, oracle=older, loss_func=loss)


def test_the_proof_sees_a_mean_that_is_called_a_sum(cluster: EngineCluster) -> None:
    replicas = digits_config((1, 2), (1, 2))
    report = verify(cluster, replicas, steps=1, loss_func=_mean_called_a_sum)
    assert not report.passed
    assert report.max_loss_difference > 1e-3


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda mask, losses: (losses * mask).sum(), "returned no number of tokens; it must"),
        (lambda mask, losses: ((losses * mask).sum(), -1), "returned -1 as the number of its tok"),
        (lambda mask, losses: (losses, mask.sum()), r"returned \[8, 42\] as its loss; it must be"),
    ],
)
def test_a_loss_of_another_form_is_named(returned: Any, said: str, cluster: EngineCluster) -> None:
    with pytest.raises(RankError, match=said):
        compute_oracle(cluster, COLOCATED, steps=1, loss_func=returned)


@rows(
    "loss, said",
    (3, "it is a int; it must be a function of"),
    (lambda losses: losses, "with two arguments"),
)
def test_what_is_not_a_loss_is_rejected(loss: Any, said: str) -> None:
    with pytest.raises(ConfigError, match="^Argument loss_func: .*" + said):
        checked_code(COLOCATED, loss_func=loss)
