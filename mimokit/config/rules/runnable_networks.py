"""What of a network can be planned but cannot be run yet."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.model import MimoParallelismConfig
from mimokit.config.rules.facts import a_fix, module_problem, network_path
from mimokit.config.rules.runnable_encoders import unrunnable_projector
from mimokit.config.rules.runnable_positions import unrunnable_positions
from mimokit.units import counted


def unrunnable_networks(model: MimoParallelismConfig) -> Iterator[Problem]:
    """Yield what of the networks of a model does not run yet."""
    for name, network in model.module_architectures.items():
        encodes = name != model.llm_module_name and name not in model.decoder_module_names
        of_items = name in model.reconstructing_names
        layers = network.over_rows if of_items else network
        yield from unrunnable_positions(name, layers, encodes or of_items)
        if encodes and model.llm_module_name in model.module_architectures:
            yield from unrunnable_projector(model, name)
        yield from _key_bias(name, network, model.get_parallelism(name).tensor_parallel)


def _key_bias(name: str, network: ModuleArchitecture, ranks: int) -> Iterator[Problem]:
    """Yield keys without a bias in query groups whose biases of values ranks cannot share."""
    groups = network.num_query_groups or network.num_attention_heads
    entries = groups * network.head_dim
    shared = network.add_key_bias is False and network.has_biases[0] and groups < ranks
    if shared and entries % ranks:
        sentence = (
            f"add_key_bias is false, but its tensor_parallel {ranks} ranks share "
            f"{counted(groups, 'query group')}, and cannot share the {entries} biases of their "
            f"values evenly; leave it out, or choose tensor_parallel of at most {groups}."
        )
        yield module_problem(
            name, "add_key_bias", False, sentence, a_fix(network_path(name, "add_key_bias"), None)
        )
