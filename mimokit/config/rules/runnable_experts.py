"""What of mixtures of experts can be planned but cannot be run."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.axes import CONFIG_FIELDS, Axis
from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.messages import problem_at
from mimokit.config.model import MimoParallelismConfig
from mimokit.config.parallelism import ModuleParallelismConfig
from mimokit.config.rules.facts import network_path, size_path


def unrunnable_experts(model: MimoParallelismConfig) -> Iterator[Problem]:
    """Yield what of the experts of a model does not run."""
    for name, network in model.module_architectures.items():
        encodes = name in model.encoder_module_names
        sizes = model.module_parallelisms.get(name)
        follows = encodes and model.deployment_mode == "homogeneous"  # without parallel experts
        if network.num_moe_experts is None:
            if sizes is not None and not follows:
                yield from _without_experts(name, sizes)
            continue
        if encodes and network.builder is not None:
            sentence = (
                f"num_moe_experts is {network.num_moe_experts}, but experts wait for the tokens of "
                "all replicas, and an encoder of yours is not called where it has none; leave it "
                "out."
            )
            path = network_path(name, "num_moe_experts")
            yield problem_at(path, network.num_moe_experts, sentence, None)
        yield from _biases(name, network, None if follows else sizes)
        name = model.llm_module_name if follows else name
        if name in model.module_parallelisms:
            yield from _sequence(name, model.module_parallelisms[name])


def _without_experts(name: str, sizes: ModuleParallelismConfig) -> Iterator[Problem]:
    for field in (CONFIG_FIELDS[axis] for axis in (Axis.EXPERT, Axis.EXPERT_TENSOR)):
        value = getattr(sizes, field) or 1
        if value > 1:
            sentence = f"{field} is {value}, but its network has no experts; set it to 1."
            yield problem_at(size_path(name, field), value, sentence, 1)


def _biases(
    name: str, network: ModuleArchitecture, sizes: ModuleParallelismConfig | None
) -> Iterator[Problem]:
    """Yield biases where Megatron has none: in shared experts, and in experts that ranks share."""
    cut = 1 if sizes is None else sizes.expert_tensor_parallel or 1
    why = f"expert_tensor_parallel is {cut}, and experts that ranks share" if cut > 1 else None
    if network.moe_shared_expert_intermediate_size:
        why = "shared experts"
    if network.has_biases[-1] and why is not None:
        stated = network.add_bias_linear
        sentence = f"add_bias_linear is not false, but {why} have no biases; set it to false."
        yield problem_at(network_path(name, "add_bias_linear"), stated, sentence, False)


def _sequence(name: str, sizes: ModuleParallelismConfig) -> Iterator[Problem]:
    """Yield tensor parallelism without sequence parallelism: every rank has all tokens."""
    if sizes.tensor_parallel > 1 and not sizes.in_runs("sequence_parallel"):
        sentence = (
            f"tensor_parallel is {sizes.tensor_parallel}, and each of these ranks would send the "
            "same tokens to the experts; set sequence_parallel to true, so that they share them."
        )
        yield problem_at(
            size_path(name, "sequence_parallel"), sizes.sequence_parallel, sentence, True
        )
