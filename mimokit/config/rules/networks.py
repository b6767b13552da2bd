"""A module's network can be cut the way its parallel sizes cut it."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.rules.context import ValidationContext


def network_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield what cannot be cut, per module."""
    for name, network in context.model.module_architectures.items():
        if not context.is_valid(f"model.module_architectures.{name}"):
            continue
        if network.modality == "vision":
            yield from _image_problems(name, network)
        yield from _head_problem(context, name, network)
        if name in context.sizes and context.has_valid_sizes(name):
            yield from _tensor_problems(context, name, network)
            yield from _pipeline_problem(context, name, network)


def _path(name: str, field: str) -> str:
    return f"model.module_architectures.{name}.{field}"


def _not_a_multiple(name: str, field: str, value: int, divisor_name: str, divisor: int) -> Problem:
    nearest = max(divisor, round(value / divisor) * divisor)
    return Problem(
        name,
        field,
        value,
        f"Module '{name}': {field} is {value}, which {divisor_name} {divisor} does not divide; "
        f"make it a multiple, {nearest} say, or change {divisor_name}.",
        {"path": _path(name, field), "value": nearest},
    )


def _tensor_problems(
    context: ValidationContext, name: str, network: ModuleArchitecture
) -> Iterator[Problem]:
    size = context.sizes[name].tensor_parallel
    cut = {
        "num_attention_heads": network.num_attention_heads,
        "hidden_size": network.hidden_size,
        "ffn_hidden_size": network.feed_forward_size,
    }
    if network.ffn_hidden_size is None and network.hidden_size % size:
        del cut["ffn_hidden_size"]  # one problem, not two
    elif not network.dense_layers:
        del cut["ffn_hidden_size"]  # experts are in its place
    padded = network.make_vocab_size_divisible_by is not None
    if name == context.model.llm_module_name and not padded:
        cut["vocab_size"] = network.vocab_size
    for field, value in cut.items():
        if value % size:
            yield _not_a_multiple(name, field, value, "tensor_parallel", size)


def _pipeline_problem(
    context: ValidationContext, name: str, network: ModuleArchitecture
) -> Iterator[Problem]:
    sizes, model = context.sizes[name], context.model
    if model.deployment_mode == "homogeneous" and name != model.llm_module_name:
        return  # it lies whole in the first stage
    layers, stages, chunks = network.num_layers, sizes.pipeline_parallel, sizes.chunks
    ends = (
        sizes.account_for_embedding_in_pipeline_split,
        sizes.account_for_loss_in_pipeline_split,
    )
    if any(ends) and not all(ends):
        return  # refused already
    if all(ends):
        yield from _uneven_problem(name, network, chunks)
    elif layers % stages:
        yield _not_a_multiple(name, "num_layers", layers, "pipeline_parallel", stages)
    elif layers % chunks:
        field = "virtual_pipeline_model_parallel_size"
        yield _not_a_multiple(name, "num_layers", layers, f"pipeline_parallel x {field}", chunks)


def _uneven_problem(name: str, network: ModuleArchitecture, chunks: int) -> Iterator[Problem]:
    """Yield why layers cannot be dealt to chunks with embedding and loss counted as layers."""
    field = "account_for_loss_in_pipeline_split"
    with_ends = network.num_layers + 2 + (network.mtp_num_layers or 0)
    even = network.num_layers % chunks == 0
    if even or with_ends % chunks:
        why = (
            f"the {chunks} chunks divide the {network.num_layers} layers (num_layers) alone; leave "
            "out both"
            if even
            else f"with both ends there are {with_ends} layers, which the {chunks} chunks do not "
            "divide; change pipeline_parallel, or leave out both"
        )
        path = f"model.module_parallelisms.{name}.{field}"
        yield Problem(
            name,
            field,
            True,
            f"Module '{name}': {field} is true, but {why}.",
            {"path": path, "value": None},
        )


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
        yield _not_a_multiple(
            name, "hidden_size", network.hidden_size, "num_attention_heads", heads
        )


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
        yield _not_a_multiple(
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
