"""What a decoder behind the language model makes has a meaning in its model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.messages import written
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.facts import a_fix, module_problem, network_path
from mimokit.units import listed

if TYPE_CHECKING:
    from mimokit.config.model import MimoParallelismConfig

_OF_DECODERS = ("reconstructs", "reconstruction_loss_weight")
_OF_ENCODERS = (
    "class_token", "keep_class_token", "num_registers", "any_image_size",
    "temporal_patch_size", "patch_bias", "pooling_head", "outer_norms", "post_layer_norm",
    "projector", "multi_latent_attention",
)  # fmt: skip


def decoder_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield decoders whose output has no meaning, and fields that only others have."""
    model = context.model
    if not context.is_valid("model.llm_module_name", "model.topology"):
        return
    if model.llm_module_name in model.decoder_module_names:  # a cycle, of another rule
        return
    for name, network in model.module_architectures.items():
        if not context.is_valid(f"model.module_architectures.{name}"):
            continue
        if name in model.reconstructing_names:
            of_images = network.modality == "vision"
            makes = "makes images" if of_images else "makes sound"
            fields = (*_OF_ENCODERS, "merge_size") if of_images else _OF_ENCODERS
            yield from _out_of_place(name, network, fields, makes, "an encoder")
            yield from _no_items(model, name, network)
        else:
            makes = "does not decode images or sound behind the language model"
            yield from _out_of_place(name, network, _OF_DECODERS, makes, "such a decoder")
        if name in model.decoder_module_names and network.modality == "text":
            yield from _out_of_place(name, network, ("projector",), "makes words", "an encoder")
        if name in model.decoder_module_names and network.modality == "rows":
            sentence = (
                f"modal_type is rows, but it comes behind '{model.llm_module_name}', where rows "
                "have no target; write text, or leave it out for a decoder of images or sound."
            )
            fix = a_fix(network_path(name, "modal_type"), None)
            yield module_problem(name, "modal_type", "rows", sentence, fix)


def _out_of_place(
    name: str, network: ModuleArchitecture, fields: tuple[str, ...], why: str, whose: str
) -> Iterator[Problem]:
    for field in fields:
        value, default = getattr(network, field), type(network).model_fields[field].default
        if value != default:
            said = f"is {written(value)}" if isinstance(value, bool | int | str) else "is given"
            sentence = f"{field} {said}, but the module {why}; only {whose} has it, leave it out."
            fix = a_fix(network_path(name, field), default)
            yield module_problem(name, field, value, sentence, fix)


def _no_items(
    model: MimoParallelismConfig, name: str, network: ModuleArchitecture
) -> Iterator[Problem]:
    """Yield a decoder of images or sound of which it is not clear whose items it makes."""
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
