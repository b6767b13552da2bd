"""Layouts that faults are planted in."""

from mimokit.config import ExperimentConfig
from tests.experiment.culprit.faults.fault import IMAGES, LANGUAGE
from tests.layouts import digits_config
from tests.layouts_apart import apart_config
from tests.layouts_networks import network_config
from tests.whole_runs import with_sizes


def fan_in() -> ExperimentConfig:
    """Return two replicas of an encoder on the ranks of a language model of two parts."""
    return digits_config((1, 2), (2, 1))


def fan_out() -> ExperimentConfig:
    """Return an encoder of two parts on the ranks of two replicas."""
    return digits_config((2, 1), (1, 2))


def parts() -> ExperimentConfig:
    return digits_config((2, 1), (2, 1))


def replicas() -> ExperimentConfig:
    return digits_config((1, 2), (1, 2))


def apart() -> ExperimentConfig:
    return apart_config((1, 1, 1), (1, 1, 1), clip_grad=0.0)


def stages() -> ExperimentConfig:
    """Return a language model of two stages, behind an encoder on another rank."""
    return apart_config((1, 1, 1), (1, 2, 1), 2)


def shared_states() -> ExperimentConfig:
    """Return two replicas that share the states of the optimizer.

    An update of the usual rate is smaller than half a step of bf16: weights would stay as they are.
    """
    shared = with_sizes(replicas(), (IMAGES, LANGUAGE), use_distributed_optimizer=True)
    shared.runtime.learning_rate = 1.0
    return shared.finalize()


def dropping(config: ExperimentConfig) -> ExperimentConfig:
    for network in config.model.module_architectures.values():
        network.hidden_dropout = 0.1
    return config


def recomputed() -> ExperimentConfig:
    """Return both modules in two parts, whose layers are computed again."""
    return with_sizes(parts(), (IMAGES, LANGUAGE), recompute_granularity="full")


def head_norms() -> ExperimentConfig:
    """Return a language model in two parts, with norms of its heads."""
    return network_config("qwen3", "siglip", (2, 1, 1), (2, 1, 1))
