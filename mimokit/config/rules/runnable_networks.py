"""What of a network can be planned but cannot be run yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.messages import problem_at, written
from mimokit.config.model import MimoParallelismConfig
from mimokit.config.rules.facts import leave_out, module_problem, network_path
from mimokit.config.rules.runnable_encoders import (
    learned_positions,
    turning_positions,
    unrunnable_projector,
)
from mimokit.units import counted

_NOT_RUNNING: Mapping[str, object] = {
    "add_key_bias": True,
    "window_size": None,
    "full_attention_layers": 0,
    "multi_latent_attention": False,
    "q_lora_rank": None,
    "kv_lora_rank": None,
    "qk_head_dim": None,
    "qk_pos_emb_head_dim": None,
    "v_head_dim": None,
    "moe_router_enable_expert_bias": False,
    "mtp_num_layers": 0,
    "temporal_patch_size": 1,
    "pooling_head": False,
}
"""Field of a network that does not run yet -> the value with which it runs, next to None.

A feature that becomes runnable takes its rows away; nothing else says what runs.
"""


def unrunnable_networks(model: MimoParallelismConfig) -> Iterator[Problem]:
    """Yield what of the networks of a model does not run yet."""
    for name, network in model.module_architectures.items():
        yield from _planned(name, network)
        learned = name != model.llm_module_name and name not in model.decoder_module_names
        yield from _positions(name, network, learned, name == model.llm_module_name)
        if learned and model.llm_module_name in model.module_architectures:
            yield from unrunnable_projector(model, name)


def _planned(name: str, network: ModuleArchitecture) -> Iterator[Problem]:
    """Yield fields that are only planned; a window at least as long as a sequence is none."""
    for field, plain in _NOT_RUNNING.items():
        value = getattr(network, field)
        wide = field == "window_size" and value is not None and value >= network.seq_length
        if value is None or value == plain or wide:
            continue
        if network.weights is not None:
            sentence = (
                f"{field} is {written(value)} in its weights, {network.weights}, which can be "
                "planned but not run yet; start it from other weights."
            )
            yield module_problem(name, field, value, sentence)
        else:
            yield leave_out(name, field, value, network_path(name, field))


def _positions(
    name: str, network: ModuleArchitecture, learned: bool, either: bool
) -> Iterator[Problem]:
    """Yield positions of a kind that the module does not have in runs."""
    field = "position_embedding_type"
    positions = network.has_learned_positions(by_default=learned)
    turns = learned and not positions and network.modality == "vision"
    if positions != learned and not either and not turns:
        yield leave_out(name, field, network.position_embedding_type, network_path(name, field))
        return
    if turns:
        yield from turning_positions(name, network)
        return
    table = network.max_position_embeddings
    if learned and table is not None:
        yield from learned_positions(name, network, table)
    if not learned and table is not None and table < network.seq_length:
        sentence = (
            f"max_position_embeddings is {table}, fewer than the "
            f"{counted(network.seq_length, 'token')} of its longest sequence (seq_length); shorten "
            "that."
        )
        yield module_problem(
            name,
            "max_position_embeddings",
            table,
            sentence,
            {"path": network_path(name, "seq_length"), "value": table},
        )
    if not positions and network.head_dim % 2 and not network.multi_latent_attention:
        sentence = (
            f"a head has {counted(network.head_dim, 'dimension')} (kv_channels), and rotary "
            "positions rotate pairs of them; make it even."
        )
        yield module_problem(name, "kv_channels", network.head_dim, sentence)
    scaling = network.rope_scaling
    if scaling is not None and scaling.rope_type not in ("linear", "llama3"):
        sentence = (
            f"rope_scaling has the rope_type {scaling.rope_type}, which can be "
            "planned but not run yet; linear and llama3 run."
        )
        yield problem_at(network_path(name, "rope_scaling"), scaling.rope_type, sentence, None)
