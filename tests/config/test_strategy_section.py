"""The section `strategy` of a file: read, written, counted, and rejected by its key."""

import inspect
from typing import Any

from mimokit.config.strategy import OPTIMIZER_TAKES, OptimizerConfig
from mimokit.config_files import config_from_mapping
from tests.config.sections import load, put, sections


def of(strategy: Any) -> dict[str, Any]:
    return put(sections(), "strategy", strategy)


NETWORK = {"bandwidth": "1 Gbit/s", "latency": "30 ms"}


def test_the_section_is_read_and_written() -> None:
    outer = {"name": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
    written = {
        "name": "diloco", "replicas": 2, "H": 20, "sync_offset": 0, "outer_optimizer": outer,
        "network": NETWORK,
    }  # fmt: skip
    config = load(of(written))
    assert config.strategy is not None
    assert config.strategy.outer_optimizer is not None
    again = config_from_mapping(config.to_mapping())
    assert again == config
    assert (config.replicas, config.total_world_size) == (2, 8)


def test_the_world_is_that_of_all_replicas() -> None:
    content = sections({"tensor_parallel": 1}, {"tensor_parallel": 2})
    assert load(content, 4).finalize(4).model.get_parallelism("images").data_parallel == 4
    config = load(put(content, "strategy", {"name": "fedavg", "replicas": 2}), 4).finalize(4)
    assert config.model.get_parallelism("images").data_parallel == 2
    assert config.total_world_size == 4


def test_the_inner_optimizer_is_that_of_the_replicas() -> None:
    import torch

    from mimokit.engine.parallel.optimizer import optimizer_spec

    inner = {"name": "adamw", "lr": 0.5, "weight_decay": 0.25}
    config = load(of({"name": "diloco", "inner_optimizer": inner}))
    assert config.inner_runtime.learning_rate == 0.5
    assert config.inner_runtime.weight_decay == 0.25
    assert config.inner_runtime.adam_epsilon == config.runtime.adam_epsilon
    adamw = optimizer_spec(config)
    assert adamw.cls is torch.optim.AdamW
    assert adamw.kwargs == {"lr": 0.5, "weight_decay": 0.25, "eps": config.runtime.adam_epsilon}
    sgd = load(of({"name": "diloco", "inner_optimizer": {"name": "sgd", "momentum": 0.9}}))
    assert optimizer_spec(sgd).cls is torch.optim.SGD
    assert optimizer_spec(sgd).kwargs == {"lr": sgd.runtime.learning_rate, "momentum": 0.9}


def test_optimizers_take_what_their_classes_in_torch_take() -> None:
    from mimokit.extras.strategies.nodes.optim import OptimSpec

    for name, taken in OPTIMIZER_TAKES.items():
        known = inspect.signature(OptimSpec.from_string(name).cls).parameters
        fields = set(OptimizerConfig.model_fields) - {"name"}
        assert set(taken) == fields & set(known), name
