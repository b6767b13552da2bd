"""The fields of a network agree with each other and with what the module is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.messages import problem_at
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.facts import (
    module_problem,
    network_path,
    network_problem,
    not_a_multiple,
)
from mimokit.config.rules.roles import (
    ENCODERS,
    VISION,
    Role,
    fields_set,
    needless_field,
    role_of,
)
from mimokit.units import counted

_OF_LATENT_ATTENTION = (
    "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "q_lora_rank",
)  # fmt: skip
_LED_BY = {
    "multi_latent_attention": _OF_LATENT_ATTENTION,
    "num_moe_experts": (
        "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size",
        "first_k_dense_replace", "moe_router_enable_expert_bias", "moe_router_pre_softmax",
        "moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_z_loss_coeff",
        "moe_expert_capacity_factor",
    ),
    "moe_shared_expert_intermediate_size": ("moe_shared_expert_gate",),
    "moe_router_enable_expert_bias": ("moe_router_bias_update_rate",),
    "window_size": ("full_attention_layers",),
    "mrope_section": ("mrope_interleaved",),
}  # fmt: skip
"""Field -> those that say nothing without it."""


def network_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield what is wrong with the networks, whatever their parallel sizes."""
    for name, network in context.networks():
        if network.modality == "vision":
            yield from _image_problems(name, network)
        yield from _head_problem(context, name, network)
        for leader, fields in _LED_BY.items():
            yield from _together(name, network, leader, fields)
        yield from _latent(name, network)
        yield from _numbers(name, network)
        yield from _positions(context, name, network)
        if context.graph_is_valid:
            yield from _in_place(name, network, role_of(context.model, name, network))


def _head_problem(
    context: ValidationContext, name: str, network: ModuleArchitecture
) -> Iterator[Problem]:
    # Silent if tensor parallelism does not divide the heads, whose number has to change anyway.
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
        sentence = f"{absent} is missing; image_size and patch_size go together, give both or none."
        yield module_problem(name, absent, None, sentence)
    if network.image_size is None or network.patch_size is None:
        if network.image_size is None and network.seq_length % network.merge_size**2:
            side = network.merge_size
            what = (
                f"but its {counted(network.seq_length, 'patch')} (seq_length) are no multiple of "
                f"{side} x {side}; choose another."
            )
            yield network_problem(name, "merge_size", side, what)
        return
    if network.image_size % network.patch_size:
        yield not_a_multiple(
            name, "image_size", network.image_size, "patch_size", network.patch_size
        )
    elif (network.image_size // network.patch_size) % network.merge_size:
        patches = network.image_size // network.patch_size
        what = (
            f"which does not divide the {counted(patches, 'patch')} along a side of an image; "
            f"choose a divisor of {patches}."
        )
        yield network_problem(name, "merge_size", network.merge_size, what)


def _in_place(name: str, network: ModuleArchitecture, role: Role) -> Iterator[Problem]:
    if role not in ENCODERS and not isinstance(network.frozen, bool):
        sentence = (
            f"frozen names the parts {', '.join(network.frozen) or 'none'}, which "
            "encoders alone have; write true or false."
        )
        yield problem_at(network_path(name, "frozen"), network.frozen, sentence, True)
    if role == VISION:
        yield from _together(name, network, "class_token", ("keep_class_token",))
        heads, width = network.num_attention_heads, network.hidden_size
        if network.pooling_head and width % heads:
            yield not_a_multiple(name, "hidden_size", width, "num_attention_heads", heads)
        yield from _square_window(name, network)


def _square_window(name: str, network: ModuleArchitecture) -> Iterator[Problem]:
    window = network.window_size
    if window is None or window >= network.seq_length or math.isqrt(window) ** 2 == window:
        return
    side = math.isqrt(window)
    what = (
        f"but a window of images is a square of patches; choose {side**2} ({side} x {side}) or "
        f"{(side + 1) ** 2}."
    )
    yield network_problem(name, "window_size", window, what)


def _together(
    name: str, network: ModuleArchitecture, leader: str, others: Sequence[str]
) -> Iterator[Problem]:
    if getattr(network, leader):
        return
    for field in fields_set(network, others):
        what = f"but {leader} is not given; give both or none."
        yield needless_field(name, network, field, what, None)


def _latent(name: str, network: ModuleArchitecture) -> Iterator[Problem]:
    if not network.multi_latent_attention:
        return
    for field in _OF_LATENT_ATTENTION[:-1]:
        if getattr(network, field) is None:
            yield network_problem(
                name, field, None, "and multi_latent_attention needs it; give it."
            )
    width = network.qk_pos_emb_head_dim or 0
    if width % 2:
        what = "and rotary positions rotate pairs of dimensions; make it even."
        yield network_problem(name, "qk_pos_emb_head_dim", width, what)


def _numbers(name: str, network: ModuleArchitecture) -> Iterator[Problem]:
    heads, groups = network.num_attention_heads, network.num_query_groups
    if groups is not None and heads % groups:
        what = (
            f"which does not divide its {heads} attention heads (num_attention_heads); choose a "
            f"divisor of {heads}."
        )
        yield network_problem(name, "num_query_groups", groups, what)
    experts, visited = network.num_moe_experts, network.moe_router_topk or 2
    if experts is not None and visited > experts:
        what = f"fewer than the {visited} that a token visits (moe_router_topk); lower that."
        yield network_problem(name, "num_moe_experts", experts, what)
    for field in ("first_k_dense_replace", "full_attention_layers"):
        value = getattr(network, field)
        if isinstance(value, int) and value > network.num_layers:
            what = f"more than its {counted(network.num_layers, 'layer')}; lower it."
            yield network_problem(name, field, value, what)
    yield from _numbered_layers(name, network)
    yield from _inner_layers(name, network)


def _inner_layers(name: str, network: ModuleArchitecture) -> Iterator[Problem]:
    numbers, field = network.inner_layers, "projector.deepstack_layers"
    if list(numbers) != sorted(set(numbers)) or max(numbers, default=0) > network.num_layers:
        what = (
            "which has to be ascending numbers of its layers; name those of 1 to "
            f"{network.num_layers}, each once."
        )
        yield network_problem(name, field, list(numbers), what)


def _numbered_layers(name: str, network: ModuleArchitecture) -> Iterator[Problem]:
    numbers = network.full_attention_layers
    if isinstance(numbers, list) and max(numbers, default=0) > network.num_layers:
        sentence = (
            f"full_attention_layers names layer {max(numbers)}, but it has "
            f"{counted(network.num_layers, 'layer')}; name those of 1 to {network.num_layers}."
        )
        yield module_problem(name, "full_attention_layers", numbers, sentence)


def _positions(
    context: ValidationContext, name: str, network: ModuleArchitecture
) -> Iterator[Problem]:
    field, value = "max_position_embeddings", network.max_position_embeddings
    if network.position_embedding_type == "interpolated":
        reads = role_of(context.model, name, network) == VISION
        yield from _interpolated(name, network, value, reads)
    elif value is not None and network.position_embedding_type != "learned_absolute":
        what = "but position_embedding_type is not learned_absolute; give both or none."
        yield network_problem(name, field, value, what, None)


def _interpolated(
    name: str, network: ModuleArchitecture, table: int | None, reads_images: bool
) -> Iterator[Problem]:
    field = "position_embedding_type"
    if not reads_images:
        what = "but the module reads no images; write rope or learned_absolute."
        yield network_problem(name, field, network.position_embedding_type, what)
    elif table is None or math.isqrt(table) ** 2 != table:
        what = "and an interpolated table is a square; give a square number, such as 2304."
        yield network_problem(name, "max_position_embeddings", table, what)
