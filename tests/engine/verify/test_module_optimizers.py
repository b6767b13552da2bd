"""Modules with rates of their own compute what one process computes, and verify sees wrong ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mimokit.config import ExperimentConfig, ModuleOptimizerConfig, StrategyConfig
from mimokit.experiment import verify
from tests import seams
from tests.invariance import assert_computes_the_same, oracle_of
from tests.layouts import digits_config
from tests.layouts_apart import decoded_config
from tests.planted import planted

LANGUAGE = "language_module"


def stepped_apart(config: ExperimentConfig, **options: dict[str, float]) -> ExperimentConfig:
    for name, own in options.items():
        config.model.get_architecture(name).optimizer = ModuleOptimizerConfig(**own)
    return config


def fan_in(**runtime: Any) -> ExperimentConfig:
    options = {"images": {"lr": 3e-3, "weight_decay": 0.3}, LANGUAGE: {"weight_decay": 0.1}}
    return stepped_apart(digits_config((1, 4), (2, 2), **runtime), **options)


def with_a_decoder() -> ExperimentConfig:
    sizes = {"images": (1, 1, 1), LANGUAGE: (1, 2, 1), "writer": (1, 1, 1)}
    return stepped_apart(decoded_config(sizes, 2), images={"lr": 2e-3}, writer={"lr": 5e-4})


def in_replicas() -> ExperimentConfig:
    options = {"lr": 0.02, "weight_decay": 0.1}
    config = stepped_apart(digits_config((1, 2), (1, 2)), images=options)
    inner = {"name": "sgd", "lr": 0.05, "momentum": 0.9}
    config.strategy = StrategyConfig(name="fedavg", replicas=2, H=2, inner_optimizer=inner)
    return config


@pytest.mark.parametrize("config", [fan_in, with_a_decoder, in_replicas])
def test_modules_with_own_rates_compute_what_one_process_computes(cluster, config):
    assert_computes_the_same(cluster, config(), steps=4)


def _swapped(original):
    """Plant: each module is stepped by what is planned for the other."""

    def update_of_run(config, plan, *others):
        images, language = (plan.executions[name] for name in ("images", LANGUAGE))
        rates = {
            "images": (language.learning_rate, language.weight_decay),
            LANGUAGE: (images.learning_rate, images.weight_decay),
        }
        return original(config, _with_rates(plan, rates), *others)

    return update_of_run


def _ignored(original):
    """Plant: all modules are stepped by the rates of the run."""
    none = {"images": (None, None), LANGUAGE: (None, None)}
    return lambda config, plan, *others: original(config, _with_rates(plan, none), *others)


def _with_rates(plan, rates):
    executions = {
        name: replace(plan.executions[name], learning_rate=lr, weight_decay=decay)
        for name, (lr, decay) in rates.items()
    }
    return replace(plan, executions=executions)


@pytest.mark.parametrize("fault", [_swapped, _ignored])
def test_check_catches_rates_that_are_swapped_or_ignored(cluster, fault):
    config = fan_in(weight_decay=0.2)
    oracle = oracle_of(cluster, config)
    with planted(cluster, seams.UPDATE_OF_RUN, fault, 4):
        report = verify(cluster, config, steps=1, oracle=oracle)
    assert report.max_gradient_difference <= 1e-5, "the step before it is right"
    assert all(report.weight_differences[0][name] > 1e-4 for name in ("images", LANGUAGE))
    assert not report.passed
