"""Projectors of encoders: their norms, inner layers, and the widths that ranks share."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.layer_architecture import ProjectorArchitecture
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.facts import network_problem


def projector_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield norms whose width does not divide that of a token, and inner layers without images."""
    model = context.model
    if not context.graph_is_valid:
        return
    for name, network in context.networks(model.encoder_module_names):
        stated = network.projector or ProjectorArchitecture()
        features = network.hidden_size * network.merge_size ** (
            2 if network.modality == "vision" else 1
        )
        width = stated.norm_size or network.hidden_size
        yield from _norm(name, "norm_size", width, features, stated)
        if network.inner_layers:
            width = stated.deepstack_norm_size or features
            yield from _norm(name, "deepstack_norm_size", width, features, stated)
            yield from _inner_layers(name, network)


def widths_on_ranks(context: ValidationContext, name: str) -> tuple[int, ...]:
    """Return the widths of outputs that ranks share, of the projectors of an encoder."""
    model = context.model
    if name not in model.encoder_module_names or name not in model.module_architectures:
        return ()
    stated = model.get_architecture(name).projector or ProjectorArchitecture()
    receivers = context.networks(model.receivers_of(name))
    return tuple(
        dict.fromkeys(w for _, taking in receivers for w in _column_widths(stated, taking))
    )


def most_inner_layers(context: ValidationContext) -> int:
    """Return the inner layers whose rows the first layers of the language model add."""
    encoders = context.networks(context.model.encoder_module_names)
    return max((len(network.inner_layers) for _, network in encoders), default=0)


def _column_widths(stated: ProjectorArchitecture, taking: ModuleArchitecture) -> list[int]:
    inside = stated.hidden_sizes
    inside = [taking.feed_forward_size] if inside is None else inside
    return [*inside, taking.hidden_size][::2]


def _norm(
    name: str, field: str, piece: int, features: int, stated: ProjectorArchitecture
) -> Iterator[Problem]:
    kind = getattr(stated, field.replace("norm_size", "normalization"))
    if kind is not None and features % piece:
        what = f"which does not divide the {features} features of a token; choose a divisor."
        yield network_problem(name, f"projector.{field}", piece, what, None)


def _inner_layers(name: str, network: ModuleArchitecture) -> Iterator[Problem]:
    field = "projector.deepstack_layers"
    if network.modality == "vision":
        return
    what = f"but it reads no images; write {field} for an encoder of images alone."
    yield network_problem(name, field, list(network.inner_layers), what, None)
