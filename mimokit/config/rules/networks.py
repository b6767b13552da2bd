"""A module's network can be cut the way its parallel sizes cut it."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.facts import not_a_multiple


def network_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield what cannot be cut, per module."""
    for name, network in context.model.module_architectures.items():
        if not context.is_valid(f"model.module_architectures.{name}"):
            continue
        if network.modality == "vision":
            yield from _image_problems(name, network)
        yield from _head_problem(context, name, network)


def _head_problem(
    context: ValidationContext, name: str, network: ModuleArchitecture
) -> Iterator[Problem]:
    """Yield the problem of heads that do not share the width evenly.

    Silent where tensor parallelism refuses the number of heads already: it has to change anyway.
    """
    heads, module = network.num_attention_heads, context.sizes.get(name)
    if module is not None and heads % module.tensor_parallel:
        return
    if (
        network.kv_channels is None
        and not network.multi_latent_attention
        and (network.hidden_size % heads)
    ):
        yield not_a_multiple(name, "hidden_size", network.hidden_size, "num_attention_heads", heads)


def _image_problems(name: str, network: ModuleArchitecture) -> Iterator[Problem]:
    if (network.image_size is None) != (network.patch_size is None):
        absent = "image_size" if network.image_size is None else "patch_size"
        yield Problem(
            name,
            absent,
            None,
            f"Module '{name}': {absent} is missing; image_size and patch_size go together, give "
            "both or none.",
        )
    if network.image_size is None or network.patch_size is None:
        return
    if network.image_size % network.patch_size:
        yield not_a_multiple(
            name, "image_size", network.image_size, "patch_size", network.patch_size
        )
    elif (network.image_size // network.patch_size) % network.merge_size:
        patches = network.image_size // network.patch_size
        yield Problem(
            name,
            "merge_size",
            network.merge_size,
            f"Module '{name}': merge_size is {network.merge_size}, which does not divide the "
            f"{patches} patches along a side of an image; choose a divisor of {patches}.",
        )
