"""A forward step of the user's: trained and proven in every mode; one that is wrong is named."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mimokit.cluster import EngineCluster, RankError
from mimokit.config import ConfigError, ExperimentConfig
from mimokit.config.checked_code import checked_code
from mimokit.experiment import Oracle, Stepper, compute_oracle, train, verify
from mimokit.samples import module_column
from tests.evaluations import QUICK
from tests.layouts import two_microbatches
from tests.rows import rows

PAGE = Path(__file__).parents[2] / "docs" / "own_modules.md"
COLOCATED, APART = two_microbatches()


def _example(data_iterator: Any, model: Any) -> Any:
    from tests.experiment.own_forward_step import forward_step

    return forward_step(data_iterator, model)


def _named(config: ExperimentConfig, **functions: str) -> ExperimentConfig:
    named = config.model_copy(deep=True)
    named.runtime = named.runtime.model_copy(update=functions)
    return named


@pytest.fixture(scope="module")
def oracle(shared_cluster: Any) -> Oracle:
    return compute_oracle(shared_cluster.get(), COLOCATED, steps=2, forward_step=_example)


def test_the_page_shows_what_the_tests_run() -> None:
    example = Path(__file__).with_name("own_forward_step.py").read_text()
    assert f"```python\n{example}```" in PAGE.read_text()


@pytest.mark.parametrize("config", [COLOCATED, APART], ids=["colocated", "heterogeneous"])
def test_it_is_what_a_layout_trains(
    config: ExperimentConfig, oracle: Oracle, cluster: EngineCluster
) -> None:
    report = verify(cluster, config, steps=2, oracle=oracle, forward_step=_example)
    assert report.passed, report.verdict


def test_files_and_steppers_take_it(oracle: Oracle, cluster: EngineCluster) -> None:
    named = _named(COLOCATED, forward_step="tests.experiment.own_forward_step:forward_step")
    steps = train(cluster, named, evaluations=QUICK).result(300).steps
    assert steps["loss"].iloc[0] == pytest.approx(oracle.losses[0], rel=1e-5)
    plain = train(cluster, COLOCATED, evaluations=QUICK).result(300).steps
    assert abs(plain["loss"].iloc[0] - oracle.losses[0]) > 0.1
    rates = [module_column(name, "tokens_per_sec") for name in ("images", "language_module")]
    ratios = [one[rates[0]] / one[rates[1]] for one in (steps, plain)]
    assert ratios[0].tolist() == pytest.approx(ratios[1].tolist())
    with Stepper(cluster, COLOCATED, forward_step=_example) as stepper:
        last = stepper.run_until(action="report")
        did = {step.records[0].did for step in stepper.snapshots}
    assert last.records[0].result["loss"] == pytest.approx(oracle.losses[0], rel=1e-5)
    assert stepper.differences == ()
    assert {"forward of language_module for micro-batch 1", None} < did
    assert "forward of images for micro-batch 1" not in did


def _unscaled_on_a_rank(data_iterator: Any, model: Any) -> Any:
    import torch.distributed as dist

    output, loss_func = _example(data_iterator, model)
    return output if dist.get_rank() == 1 else output * 3, loss_func


def _other_loss_on_a_rank(data_iterator: Any, model: Any) -> Any:
    import torch.distributed as dist

    output, loss_func = _example(data_iterator, model)
    other = dist.get_rank() == 1
    return output, lambda output: loss_func(output.abs() if other else output.square())


@pytest.mark.parametrize("step", [_unscaled_on_a_rank, _other_loss_on_a_rank])
def test_the_proof_sees_another_forward_step_on_one_rank(step: Any, cluster: EngineCluster) -> None:
    report = verify(cluster, COLOCATED, steps=1, forward_step=step)
    assert not report.passed
    assert max(report.gradient_differences[0].values()) > 1e-2


def _output_alone(data_iterator: Any, model: Any) -> Any:
    return model(**next(data_iterator))[0]


def _number_as_loss(data_iterator: Any, model: Any) -> Any:
    return model(**next(data_iterator))[0], 3


def _mean(data_iterator: Any, model: Any) -> Any:
    return model(**next(data_iterator))[0], lambda output: output.mean()


def _raises(data_iterator: Any, model: Any) -> Any:
    return next(data_iterator)["no_such"]


def _two_batches(data_iterator: Any, model: Any) -> Any:
    return next(data_iterator), next(data_iterator)


def _loss_raises(data_iterator: Any, model: Any) -> Any:
    return model(**next(data_iterator))[0], lambda output: output.no_such


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (_output_alone, "step _output_alone returned a Tensor; it must return two things"),
        (_number_as_loss, "_number_as_loss returned a int as its loss function; it must be"),
        (_mean, "The loss function returned no number of tokens; it must"),
        (_raises, r"_raises raised KeyError in line \d+ of .*step.py: 'no_such'"),
        (_two_batches, "took a second batch from its data iterator"),
        (_loss_raises, r"loss function _loss_raises\S+ raised AttributeError in line \d+ of"),
    ],
)
def test_what_is_wrong_is_named(step: Any, said: str, cluster: EngineCluster) -> None:
    with pytest.raises(RankError, match=said):
        compute_oracle(cluster, COLOCATED, steps=1, forward_step=step)


def _twice(data_iterator: Any, model: Any) -> Any:
    batch = next(data_iterator)
    model(**batch)
    return _example(iter([batch]), model)


def _nothing_to_send(data_iterator: Any, model: Any) -> Any:
    output, loss_func = _example(data_iterator, model)
    return output[:1], loss_func


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (_twice, "called its model 2 times on the stage of 'images'; it must call it once"),
        (_nothing_to_send, r"returned \[1, 64\] as its output on the stage of 'images'; it must"),
    ],
)
def test_what_a_stage_cannot_pass_on_is_named(step: Any, said: str, cluster: EngineCluster) -> None:
    run = train(cluster, APART, forward_step=step)
    with pytest.raises(RankError, match=said):
        run.result(300)


@rows(
    "functions, said",
    ({"forward_step": 3}, "^Argument forward_step: it is a int; it must be a function of"),
    ({"forward_step": partial(_example, model=None)}, "cannot be called with two arguments"),
    (
        {"forward_step": _example, "loss_func": _example},
        "loss_func is refused with forward_step; change one of them.",
    ),
)
def test_what_is_not_a_forward_step_is_rejected(functions: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        checked_code(COLOCATED, **functions)


@rows(
    "path, said",
    ("step", "forward_step is step, but it must be package.module:function"),
    ("no_such_package:step", r"cannot be imported \(ModuleNotFoundError"),
    ("tests.layouts:no_such", "but tests.layouts has no no_such"),
    ("tests.layouts:IMAGE_TOKEN", "forward_step is a int; it must be a function of"),
)
def test_a_file_that_names_no_forward_step_is_rejected(path: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^Section 'runtime': .*{said}"):
        checked_code(_named(COLOCATED, forward_step=path))


def test_a_file_names_a_loss(cluster: EngineCluster) -> None:
    named = _named(COLOCATED, loss_func="tests.experiment.own_forward_step:squared")
    assert verify(cluster, named, steps=1).passed
