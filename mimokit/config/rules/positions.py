"""Positions of tokens fit the heads of a network and the length of its sequences."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.layer_architecture import RopeScaling
from mimokit.config.messages import problem_at
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.facts import a_fix, module_problem, network_path, network_problem
from mimokit.units import counted

_STRETCHED = ("linear", "dynamic", "llama3", "yarn", "longrope")


def position_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield tables of positions that are too short, and heads that rotary ones cannot rotate."""
    model = context.model
    for name, network in context.networks() if context.graph_is_valid else ():
        of_items = name in model.reconstructing_names
        encodes = name != model.llm_module_name and name not in model.decoder_module_names
        layers = network.over_rows if of_items else network
        if layers.has_learned_positions(by_default=encodes or of_items):
            yield from _table(name, layers, encodes or of_items)
        elif not layers.multi_latent_attention and _has_even_heads(layers):
            of_images = encodes and layers.modality == "vision"
            yield from _rotary(name, layers, axes=2 if of_images else 1)


def _has_even_heads(network: ModuleArchitecture) -> bool:
    """Return whether the width of a head is known: else another rule has said so."""
    return network.kv_channels is not None or not network.hidden_size % network.num_attention_heads


def _table(name: str, network: ModuleArchitecture, encodes: bool) -> Iterator[Problem]:
    field, rows = "max_position_embeddings", network.max_position_embeddings
    positions = network.positions - network.num_registers if encodes else network.seq_length
    if rows is None or rows >= positions:
        return
    if encodes:
        what = (
            f"fewer than the {counted(positions, 'position')} of its longest item; raise it, or "
            "leave it out for as many."
        )
        yield network_problem(name, field, rows, what, None)
        return
    sentence = (
        f"{field} is {rows}, fewer than the {counted(positions, 'token')} of its longest sequence "
        "(seq_length); shorten that."
    )
    yield module_problem(name, field, rows, sentence, a_fix(network_path(name, "seq_length"), rows))


def _rotary(name: str, network: ModuleArchitecture, axes: int) -> Iterator[Problem]:
    width = network.head_dim
    if width % (2 * axes):
        what = (
            "images rotate pairs of them with rows, and as many with columns; make it a multiple "
            "of 4."
        )
        sentence = (
            f"a head has {counted(width, 'dimension')} (kv_channels), and rotary positions "
            f"{'rotate pairs of them; make it even.' if axes == 1 else f'of {what}'}"
        )
        yield module_problem(name, "kv_channels", width, sentence)
    elif network.rope_scaling is not None:
        yield from _scaling(name, network.rope_scaling, width // axes // 2)


def _scaling(name: str, scaling: RopeScaling, pairs: int) -> Iterator[Problem]:
    path = network_path(name, "rope_scaling")
    if scaling.rope_type not in _STRETCHED:
        sentence = (
            f"rope_scaling has the rope_type {scaling.rope_type}; choose "
            f"{', '.join(_STRETCHED[:-1])} or {_STRETCHED[-1]}."
        )
        yield problem_at(path, scaling.rope_type, sentence, None)
    if scaling.rope_type == "dynamic" and pairs == 1:
        sentence = "rope_scaling is dynamic, but a head has one pair that turns; leave it out."
        yield problem_at(path, scaling.rope_type, sentence, None)
    for field in ("short_factor", "long_factor") if scaling.rope_type == "longrope" else ():
        factors = getattr(scaling, field) or ()
        if len(factors) != pairs:
            sentence = (
                f"rope_scaling.{field} has {counted(len(factors), 'number')}, but a head has "
                f"{counted(pairs, 'pair')} that turn; give one for each."
            )
            yield problem_at(path, list(factors), sentence)
