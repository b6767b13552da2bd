"""Which fields of a network a module may have, by what it is in its model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, get_args

from mimokit.config.architecture import OF_VISION, ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.messages import written
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.facts import a_fix, module_problem, network_path

if TYPE_CHECKING:
    from mimokit.config.model import MimoParallelismConfig

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

_OWNERS: tuple[tuple[str, tuple[Role, ...], tuple[str, ...]], ...] = (
    (
        "the language module",
        (LANGUAGE,),
        (
            "mtp_num_layers", "mtp_loss_scaling_factor", "make_vocab_size_divisible_by",
            "tied_embeddings", "mrope_section", "mrope_interleaved",
        ),
    ),
    (
        "a vision encoder",
        (VISION,),
        (*OF_VISION, "class_token", "keep_class_token", "num_registers", "any_image_size"),
    ),
    ("an encoder", ENCODERS, ("projector",)),
    ("a module of text", (LANGUAGE, WRITER), ("multi_latent_attention",)),
    ("a module of images", (VISION, PAINTER), ("image_size", "patch_size", "num_channels")),
    ("a module of sound", (AUDIO, SPEAKER), ("mel_bins",)),
    ("an encoder or decoder of items", (VISION, AUDIO, SPEAKER), ("merge_size",)),
    (
        "a decoder of items", (PAINTER, SPEAKER), ("reconstructs", "reconstruction_loss_weight")
    ),
    ("another module", ROLES[1:], ("modal_type",)),
)  # fmt: skip
"""(how a sentence calls them, roles, fields that they alone have); all may have other fields."""
_ROLES = {field: roles for _, roles, fields in _OWNERS for field in fields}


def role_of(model: MimoParallelismConfig, name: str, network: ModuleArchitecture) -> Role:
    """Return what a module is in its model."""
    if name == model.llm_module_name:
        return LANGUAGE
    if name in model.decoder_module_names:
        return _DECODER_OF.get(network.modality, WRITER)
    return ENCODER_OF[network.modality]


def may_have(role: Role, field: str) -> bool:
    """Tell whether a module may have a field of a network."""
    return role in _ROLES.get(field, (role,))


def role_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield the fields of networks that only other modules have."""
    model = context.model
    for name, network in context.networks() if context.graph_is_valid else ():
        role = role_of(model, name, network)
        for owner, roles, fields in _OWNERS:
            for field in fields_set(network, fields) if role not in roles else ():
                what = f"but the module is {role}; only {owner} has it, leave it out."
                default = type(network).model_fields[field].default
                yield needless_field(name, network, field, what, default)


def fields_set(network: ModuleArchitecture, fields: Iterable[str]) -> Iterator[str]:
    """Yield those of some fields that have another value than their default."""
    for field in fields:
        if getattr(network, field) != type(network).model_fields[field].default:
            yield field


def needless_field(
    name: str, network: ModuleArchitecture, field: str, what: str, right: object
) -> Problem:
    """Return the problem of a field that is to be left out; a long value is not repeated."""
    value = getattr(network, field)
    said = f"is {written(value)}" if isinstance(value, int | str) else "is given"
    fix = a_fix(network_path(name, field), right)
    return module_problem(name, field, value, f"{field} {said}, {what}", fix)
