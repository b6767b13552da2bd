"""Which fields of a network a module may have, by what it is in its model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from mimokit.config.architecture import OF_VISION, ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.messages import problem_at
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.writing import network_path

if TYPE_CHECKING:
    from mimokit.config.experiment import MimoParallelismConfig

Role = Literal[
    "the language module",
    "a vision encoder",
    "an audio encoder (mel_bins)",
    "a text head (modal_type text)",
    "an adapter (modal_type rows)",
    "a text decoder",
    "a decoder of images",
    "a decoder of sound",
]
ROLES: tuple[Role, ...] = get_args(Role)
LANGUAGE, VISION, AUDIO, TEXT, ADAPTER, WRITER, PAINTER, SPEAKER = ROLES
ENCODER_OF: Mapping[str, Role] = {
    "vision": VISION, "audio": AUDIO, "text": TEXT, "rows": ADAPTER
}  # fmt: skip
_DECODER_OF: Mapping[str, Role] = {"vision": PAINTER, "audio": SPEAKER}
ENCODERS = tuple(ENCODER_OF.values())


class Owners(NamedTuple):
    """Modules that alone may have some fields, and how a sentence calls them."""

    name: str
    roles: tuple[Role, ...]
    fields: tuple[str, ...]


OWNERS = (
    Owners(
        "the language module",
        (LANGUAGE,),
        (
            "mtp_num_layers", "mtp_loss_scaling_factor", "make_vocab_size_divisible_by",
            "tied_embeddings", "mrope_section", "mrope_interleaved",
        ),
    ),
    Owners("a vision encoder", (VISION,), OF_VISION),
    Owners("an encoder", ENCODERS, ("projector",)),
    Owners("a module of text", (LANGUAGE, WRITER), ("multi_latent_attention",)),
    Owners("a module of images", (VISION, PAINTER), ("image_size", "patch_size", "num_channels")),
    Owners("a module of sound", (AUDIO, SPEAKER), ("mel_bins",)),
    Owners("an encoder or decoder of items", (VISION, AUDIO, SPEAKER), ("merge_size",)),
    Owners(
        "a decoder of items", (PAINTER, SPEAKER), ("reconstructs", "reconstruction_loss_weight")
    ),
    Owners("another module", ROLES[1:], ("modal_type",)),
)  # fmt: skip
"""All modules may have the other fields."""


def role_of(model: MimoParallelismConfig, name: str, network: ModuleArchitecture) -> Role:
    """Return what a module is in its model."""
    if name == model.llm_module_name:
        return LANGUAGE
    if name in model.decoder_module_names:
        return _DECODER_OF.get(network.modality, WRITER)
    return ENCODER_OF[network.modality]


@cache
def may_have(role: Role, field: str) -> bool:
    """Tell whether a module may have a field of a network."""
    return all(role in owners.roles for owners in OWNERS if field in owners.fields)


def role_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield the fields of networks that only other modules have."""
    model = context.model
    for name, network in context.networks() if context.graph_is_valid else ():
        role = role_of(model, name, network)
        for owners in OWNERS:
            for field in filter(network.states, owners.fields if role not in owners.roles else ()):
                what = f", but the module is {role}; only {owners.name} has it, leave it out."
                value, right = getattr(network, field), type(network).model_fields[field].default
                yield problem_at(network_path(name, field), value, what, right)
