"""What of mixtures of experts can be planned but cannot be run."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.errors import Problem
from mimokit.config.messages import problem_at
from mimokit.config.model import MimoParallelismConfig
from mimokit.config.rules.facts import network_path


def unrunnable_experts(model: MimoParallelismConfig) -> Iterator[Problem]:
    """Yield what of the experts of a model does not run."""
    for name in model.encoder_module_names:
        network = model.module_architectures.get(name)
        if network is None or network.num_moe_experts is None or network.builder is None:
            continue
        sentence = (
            f"num_moe_experts is {network.num_moe_experts}, but experts wait for the tokens of "
            "all replicas, and an encoder of yours is not called where it has none; leave it "
            "out."
        )
        path = network_path(name, "num_moe_experts")
        yield problem_at(path, network.num_moe_experts, sentence, None)
