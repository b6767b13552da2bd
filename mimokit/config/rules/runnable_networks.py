"""What of a network can be planned but cannot be run yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.messages import problem_at, written
from mimokit.config.model import MimoParallelismConfig
from mimokit.config.rules.facts import a_fix, leave_out, module_problem, network_path
from mimokit.config.rules.runnable_encoders import (
    learned_positions,
    turning_positions,
    unrunnable_projector,
)
from mimokit.units import counted

_NOT_RUNNING: Mapping[str, object] = {"mtp_num_layers": 0}
"""Field of a network that does not run yet -> the value with which it runs, next to None.

A feature that becomes runnable takes its rows away; nothing else says what runs.
"""


def unrunnable_networks(model: MimoParallelismConfig) -> Iterator[Problem]:
    """Yield what of the networks of a model does not run yet."""
    for name, network in model.module_architectures.items():
        yield from _planned(name, network)
        encodes = name != model.llm_module_name and name not in model.decoder_module_names
        yield from _positions(name, network, encodes)
        if encodes and model.llm_module_name in model.module_architectures:
            yield from unrunnable_projector(model, name)
        yield from _latent(name, network)
        yield from _key_bias(name, network, model.get_parallelism(name).tensor_parallel)


def _planned(name: str, network: ModuleArchitecture) -> Iterator[Problem]:
    """Yield fields that are only planned."""
    for field, plain in _NOT_RUNNING.items():
        value = getattr(network, field)
        if value is None or value == plain:
            continue
        if network.weights is not None:
            sentence = (
                f"{field} is {written(value)} in its weights, {network.weights}, which can be "
                "planned but not run yet; start it from other weights."
            )
            yield module_problem(name, field, value, sentence)
        else:
            yield leave_out(name, field, value, network_path(name, field))


def _positions(name: str, network: ModuleArchitecture, encodes: bool) -> Iterator[Problem]:
    """Yield tables of positions that are too short, and rotary ones that do not run."""
    positions = network.has_learned_positions(by_default=encodes)
    if encodes and not positions:
        yield from turning_positions(name, network)
        return
    table = network.max_position_embeddings
    if encodes and table is not None:
        yield from learned_positions(name, network, table)
    if not encodes and table is not None and table < network.seq_length:
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
    if scaling is not None and scaling.rope_type not in ("linear", "llama3", "yarn"):
        sentence = (
            f"rope_scaling has the rope_type {scaling.rope_type}, which can be "
            "planned but not run yet; linear, llama3 and yarn run."
        )
        yield problem_at(network_path(name, "rope_scaling"), scaling.rope_type, sentence, None)


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


def _latent(name: str, network: ModuleArchitecture) -> Iterator[Problem]:
    """Yield fields that multi-latent attention, which rotates a part of each head, rejects."""
    if not network.multi_latent_attention:
        return
    scaling, width = network.rope_scaling, network.qk_pos_emb_head_dim or 0
    others = {
        "mrope_section": network.mrope_section is not None,
        "rope_scaling": scaling is not None and scaling.rope_type != "yarn",
        "position_embedding_type": network.position_embedding_type == "learned_absolute",
    }
    for field in (field for field, given in others.items() if given):
        sentence = (
            f"{field} is {written(value)}"
            if isinstance(value := getattr(network, field), str)
            else f"{field} is given"
        )
        sentence += ", which does not run with multi_latent_attention; leave it out."
        fix = a_fix(network_path(name, field), None)
        yield module_problem(name, field, value, sentence, fix)
    if width % 2:
        sentence = (
            f"qk_pos_emb_head_dim is {width}, and rotary positions rotate pairs of dimensions; "
            "make it even."
        )
        yield module_problem(name, "qk_pos_emb_head_dim", width, sentence)
