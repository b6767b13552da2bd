"""What a decoder behind the language model makes has a meaning in its model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.facts import module_problem, network_problem
from mimokit.units import listed

if TYPE_CHECKING:
    from mimokit.config.model import MimoParallelismConfig


def decoder_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield decoders whose output has no meaning."""
    model = context.model
    if not context.graph_is_valid:
        return
    if model.llm_module_name in model.decoder_module_names:  # a cycle, of another rule
        return
    for name, network in context.networks():
        if name in model.reconstructing_names:
            yield from _no_items(model, name, network)
        if name in model.decoder_module_names and network.modality == "rows":
            what = (
                f"but it comes behind '{model.llm_module_name}', where rows have no target; write "
                "text, or leave it out for a decoder of images or sound."
            )
            yield network_problem(name, "modal_type", "rows", what, None)


def _no_items(
    model: MimoParallelismConfig, name: str, network: ModuleArchitecture
) -> Iterator[Problem]:
    if model.reconstructed_by(network) is not None:
        return
    reading, named = model.reading(network.modality), network.reconstructs
    items = "images" if network.modality == "vision" else "sound"
    right = (
        f"write one of {listed([*map(repr, reading)])} as reconstructs"
        if reading
        else "write modal_type: text for a decoder of tokens, or remove it"
    )
    what = (
        f"several encoders read {items} ({listed([*reading])})" if named is None and reading
        else f"no encoder reads {items}" if not reading
        else f"'{named}' does not read {items}"
    )  # fmt: skip
    sentence = f"it makes {items} behind '{model.llm_module_name}', but {what}; {right}."
    yield module_problem(name, "reconstructs", named, sentence)
