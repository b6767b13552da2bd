"""Modules with rates of their own compute what one process computes."""

import pytest

from mimokit.config import ExperimentConfig, ModuleOptimizerConfig, StrategyConfig
from tests.invariance import assert_computes_the_same
from tests.layouts import digits_config
from tests.layouts_apart import decoded_config

LANGUAGE = "language_module"


def stepped_apart(config: ExperimentConfig, **options: dict[str, float]) -> ExperimentConfig:
    for name, own in options.items():
        config.model.get_architecture(name).optimizer = ModuleOptimizerConfig(**own)
    return config


def with_a_decoder() -> ExperimentConfig:
    sizes = {"images": (1, 1, 1), LANGUAGE: (1, 2, 1), "writer": (1, 1, 1)}
    return stepped_apart(decoded_config(sizes, 2), images={"lr": 2e-3}, writer={"lr": 5e-4})


def in_replicas() -> ExperimentConfig:
    options = {"lr": 0.02, "weight_decay": 0.1}
    config = stepped_apart(digits_config((1, 2), (1, 2)), images=options)
    inner = {"name": "sgd", "lr": 0.05, "momentum": 0.9}
    config.strategy = StrategyConfig(name="fedavg", replicas=2, H=2, inner_optimizer=inner)
    return config


@pytest.mark.parametrize("config", [with_a_decoder, in_replicas])
def test_modules_with_own_rates_compute_what_one_process_computes(cluster, config):
    assert_computes_the_same(cluster, config(), steps=4)
