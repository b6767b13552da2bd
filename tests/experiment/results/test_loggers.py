"""Where rows go next to the run's folder, with stand-ins for libraries that are not installed."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mimokit.config import ConfigError, ExperimentConfig, RuntimeConfig
from mimokit.experiment.results.loggers import LoggedRun, make_loggers, scalars
from mimokit.experiment.sweeps.experiments import choose, collect
from mimokit.planning import plan_layout
from tests.layouts import digits_config

STEP = {
    "iteration": 3,
    "time": 1_700_000_000.5,
    "total_time": 0.2,
    "memory_peak": 5e8,
    "tokens_per_sec": 900.0,
    "validation_loss": 1.5,
    "images_forward_time": 0.1,
    "grad_norm": 0.7,
}
EVALUATION = {"iteration": 2, "time": 1_700_000_001.0, "task": "read", "loss": 1.0, "chance": None}
TAGGED = {
    "time/total_time": 0.2,
    "memory/memory_peak": 5e8,
    "throughput/tokens_per_sec": 900.0,
    "loss/validation_loss": 1.5,
    "images/images_forward_time": 0.1,
    "training/grad_norm": 0.7,
}


def _config(*names: str) -> ExperimentConfig:
    return digits_config((1, 2), (2, 1), loggers=list(names))


def _log(config: ExperimentConfig, folder: Path, status: str) -> None:
    (logger,) = make_loggers(config.runtime)
    modules = tuple(plan_layout(config).modules)
    logger.start(LoggedRun(config.name, modules, config.to_mapping(), config.to_yaml()), folder)
    logger.step(dict(STEP))
    logger.evaluation(EVALUATION)
    logger.finish(status)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Stand-ins for wandb and mlflow; what they are called with."""
    found: list[tuple[str, Any]] = []

    class Standing:
        """Records every call, and returns itself or a given answer."""

        def __init__(self, **answers: Any) -> None:
            self._answers = answers

        def __getattr__(self, name: str) -> Any:
            def called(*arguments: Any, **options: Any) -> Any:
                found.append((name, options or arguments))
                return self._answers.get(name)

            return called

    run = Standing()
    wandb = ModuleType("wandb")
    wandb.init = Standing(init=run).init  # type: ignore[attr-defined]
    client = Standing(
        create_experiment="7", create_run=SimpleNamespace(info=SimpleNamespace(run_id="r"))
    )
    mlflow = ModuleType("mlflow")
    mlflow.MlflowClient = lambda: client  # type: ignore[attr-defined]
    mlflow.entities = SimpleNamespace(Metric=lambda *values: values)  # type: ignore[attr-defined]
    for name, module in (("wandb", wandb), ("mlflow", mlflow)):
        monkeypatch.setitem(sys.modules, name, module)
    return found


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("stopped", 0), ("failed", 1)])
def test_weights_and_biases_gets_config_rows_and_end(
    status: str, code: int, calls: list[tuple[str, Any]], tmp_path: Path
) -> None:
    config = _config("wandb")
    _log(config, tmp_path, status)
    assert [name for name, _ in calls] == ["init", "define_metric", "log", "log", "finish"]
    assert calls[0][1]["name"] == config.name
    assert calls[0][1]["dir"] == str(tmp_path)
    assert calls[0][1]["config"] == config.to_mapping()
    assert calls[2][1] == ({"iteration": 3, **TAGGED},)
    assert calls[3][1] == ({"iteration": 2, "evaluation/loss": 1.0},)
    assert calls[4][1] == {"exit_code": code}


@pytest.mark.parametrize(("status", "end"), [("completed", "FINISHED"), ("failed", "FAILED")])
def test_mlflow_gets_config_rows_and_end(
    status: str, end: str, calls: list[tuple[str, Any]], tmp_path: Path
) -> None:
    config = _config("mlflow")
    _log(config, tmp_path, status)
    given = dict(calls)
    assert given["create_run"] == {"run_name": config.name}
    assert given["log_text"] == ("r", config.to_yaml(), "config.yaml")
    first, second = (options["metrics"] for name, options in calls if name == "log_batch")
    assert {metric[:2] for metric in first} == set(TAGGED.items())
    assert {metric[2:] for metric in first} == {(1_700_000_000_500, 3)}
    assert second == [("evaluation/loss", 1.0, 1_700_000_001_000, 2)]
    assert given["set_terminated"] == ("r", end)


def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("wandb", "mlflow", "tensorboard"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ConfigError) as caught:
        make_loggers(RuntimeConfig(tensorboard_dir="board", loggers=["wandb", "mlflow"]))
    about = [(problem.field, problem.value) for problem in caught.value.problems]
    assert about == [
        ("tensorboard_dir", "tensorboard"),
        ("loggers", "wandb"),
        ("loggers", "mlflow"),
    ]
    assert "loggers asks for wandb, but the package wandb is not installed" in str(caught.value)


def test_a_sweep_refuses_what_cannot_be_logged_or_compared_before_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    unknown = digits_config((1, 2), (2, 1), hardware="h1000")
    chosen = choose(collect([_config("wandb"), unknown.model_copy(update={"name": "unknown"})]), 2)
    said = [str(one.refusal) for one in chosen]
    assert "wandb is not installed" in said[0]
    assert "GPU 'h1000': it does not exist" in said[1]


def test_the_config_says_which_loggers() -> None:
    assert RuntimeConfig().chosen_loggers == ()
    assert RuntimeConfig(tensorboard_dir="board").chosen_loggers == ("tensorboard",)
    both = RuntimeConfig(tensorboard_dir="board", loggers=["wandb", "tensorboard", "wandb"])
    assert both.chosen_loggers == ("tensorboard", "wandb")
    with pytest.raises(ConfigError, match="choose 'tensorboard', 'wandb' or 'mlflow'"):
        RuntimeConfig(loggers=["tensorbord"])  # type: ignore[list-item]


def test_a_module_named_as_a_group_keeps_its_own(tmp_path: Path) -> None:
    row = {"iteration": 0, "loss_forward_time": 1.0, "forward_time": 2.0}
    assert dict(scalars(row, ["loss"])) == {"loss/loss_forward_time": 1.0, "time/forward_time": 2.0}
